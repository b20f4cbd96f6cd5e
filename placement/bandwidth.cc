#include "placement/bandwidth.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/quantity.h"

namespace eplb {
namespace {

constexpr double kGiga = 1e9;
constexpr double kLeast = 1e-6 * kGiga;
constexpr double kMostBytesPerS = 1e6 * kGiga;
constexpr double kBitsPerByte = 8;
constexpr double kMostNvlink = 1800;
constexpr double kNicRates[] = {100, 200, 400, 800, 1600};

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

// Bytes per second of one unit.
std::optional<double> BytesOf(std::string_view unit) {
  if (unit.empty()) return kGiga;
  double scale = TakeDecimalPrefix(unit);
  if (TakePrefix(unit, "bit") || TakePrefix(unit, "b")) {
    scale /= kBitsPerByte;
  } else if (!TakePrefix(unit, "B")) {
    return std::nullopt;
  }
  if (unit != "/s" && unit != "ps") return std::nullopt;
  return scale;
}

std::string Shortest(double value) {
  constexpr size_t kEnough = 32;
  std::string text(kEnough, '\0');
  const std::to_chars_result end = std::to_chars(text.data(), text.data() + text.size(), value);
  text.resize(static_cast<size_t>(end.ptr - text.data()));
  return text;
}

}  // namespace

absl::StatusOr<double> ParseBandwidth(std::string_view text) {
  const std::optional<Quantity> quantity = SplitQuantity(text);
  const std::optional<double> unit = quantity ? BytesOf(quantity->unit) : std::nullopt;
  if (unit) {
    const double bytes_per_s = quantity->number * *unit;
    if (bytes_per_s >= kLeast && bytes_per_s <= kMostBytesPerS) return bytes_per_s;
  }
  return InvalidInput("expected ", kBandwidthExpected);
}

std::string BandwidthText(double bytes_per_s) {
  return absl::StrCat(Shortest(bytes_per_s / kGiga), " GB/s");
}

std::string BandwidthNote(std::string_view text, LinkClass link) {
  const std::optional<Quantity> quantity = SplitQuantity(text);
  if (!quantity || !quantity->unit.empty()) return "";
  const double number = quantity->number;
  const bool is_nic = std::ranges::find(kNicRates, number) != std::end(kNicRates);
  const bool doubtful = number > kMostNvlink || (link == LinkClass::kInterNode && is_nic);
  if (!doubtful) return "";
  const std::string given = Shortest(number);
  return absl::StrCat("is read as ", given, " GB/s; did you mean ", given,
                      "Gb/s = ", BandwidthText(number / kBitsPerByte * kGiga), "?");
}

}  // namespace eplb
