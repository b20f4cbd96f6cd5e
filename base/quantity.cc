#include "base/quantity.h"

#include <charconv>
#include <cmath>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/time/time.h"

namespace eplb {
namespace {

constexpr double kTwoTo63 = 9223372036854775808.0;

std::string_view Stripped(std::string_view text) {
  const absl::string_view stripped = absl::StripAsciiWhitespace({text.data(), text.size()});
  return {stripped.data(), stripped.size()};
}

bool IsDigits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Bytes of one unit.
std::optional<double> BytesOfUnit(std::string_view unit) {
  struct Binary {
    std::string_view name;
    double bytes;
  };
  constexpr Binary kBinary[] = {
      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"KB", 1e3}};
  for (const Binary& binary : kBinary) {
    if (unit == binary.name) return binary.bytes;
  }
  const double scale = TakeDecimalPrefix(unit);
  if (unit != "B") return std::nullopt;
  return scale;
}

}  // namespace

std::optional<Quantity> SplitQuantity(std::string_view text) {
  text = Stripped(text);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  Quantity quantity;
  const std::from_chars_result end =
      std::from_chars(text.data(), text.data() + text.size(), quantity.number);
  if (end.ec != std::errc() || !std::isfinite(quantity.number)) return std::nullopt;
  quantity.unit = Stripped(text.substr(static_cast<size_t>(end.ptr - text.data())));
  return quantity;
}

double TakeDecimalPrefix(std::string_view& unit) {
  struct Prefix {
    char letter;
    double factor;
  };
  constexpr Prefix kPrefixes[] = {{'k', 1e3}, {'M', 1e6}, {'G', 1e9}, {'T', 1e12}};
  for (const Prefix& prefix : kPrefixes) {
    if (!unit.starts_with(prefix.letter)) continue;
    unit.remove_prefix(1);
    return prefix.factor;
  }
  return 1;
}

std::optional<int64_t> ParseBytes(std::string_view text) {
  text = Stripped(text);
  int64_t exact = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  if (IsDigits(text)) {
    if (!absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &exact)) return std::nullopt;
    return exact;
  }
  const std::optional<Quantity> quantity = SplitQuantity(text);
  if (!quantity || quantity->number < 0) return std::nullopt;
  const std::optional<double> unit = BytesOfUnit(quantity->unit);
  if (!unit) return std::nullopt;
  const double bytes = quantity->number * *unit;
  // 4.4 MB is no whole number of bytes in binary fractions, 0.5 B is none at all.
  const double whole = std::round(bytes);
  if (whole >= kTwoTo63 || std::abs(bytes - whole) > 1e-9 * bytes) return std::nullopt;
  return static_cast<int64_t>(whole);
}

std::optional<double> ParseFraction(std::string_view text) {
  const std::optional<Quantity> quantity = SplitQuantity(text);
  if (!quantity) return std::nullopt;
  if (quantity->unit.empty()) return quantity->number;
  if (quantity->unit == "%") return quantity->number / 100;
  return std::nullopt;
}

std::optional<double> ParseNanoseconds(std::string_view text, double bare_ns) {
  const std::optional<Quantity> quantity = SplitQuantity(text);
  if (!quantity) return std::nullopt;
  if (quantity->unit.empty()) return quantity->number * bare_ns;
  struct Unit {
    std::string_view name;
    double ns;
  };
  constexpr Unit kUnits[] = {{"ns", 1},   {"us", 1e3},   {"ms", 1e6},   {"s", 1e9},    {"sec", 1e9},
                             {"m", 60e9}, {"min", 60e9}, {"h", 3600e9}, {"d", 86400e9}};
  for (const Unit& unit : kUnits) {
    if (quantity->unit == unit.name) return quantity->number * unit.ns;
  }
  absl::Duration compound;
  if (!absl::ParseDuration(absl::string_view(text.data(), text.size()), &compound) ||
      compound == absl::InfiniteDuration() || compound == -absl::InfiniteDuration()) {
    return std::nullopt;
  }
  return absl::ToDoubleNanoseconds(compound);
}

}  // namespace eplb
