#include "server/config/config_values.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "placement/bandwidth.h"

namespace eplb {
namespace {

using Kind = ConfigValue::Kind;

bool IsHostName(std::string_view name) {
  constexpr size_t kLongest = 253;  // of a name in DNS
  return !name.empty() && name.size() <= kLongest &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ||
                  c == '_';
         });
}

}  // namespace

std::optional<int64_t> Integer(const ConfigValue& value, int64_t low, int64_t high) {
  int64_t number = 0;
  if (value.kind != Kind::kInteger && value.kind != Kind::kUntyped) return std::nullopt;
  if (!absl::SimpleAtoi(value.text, &number) || number < low || number > high) return std::nullopt;
  return number;
}

bool SetInteger(const ConfigValue& value, int64_t low, int64_t high, int32_t* out) {
  const std::optional<int64_t> number = Integer(value, low, high);
  if (number) *out = static_cast<int32_t>(*number);
  return number.has_value();
}

bool SetReal(const ConfigValue& value, double low, double high, double* out) {
  double number = 0;
  const bool numeric = value.kind == Kind::kInteger || value.kind == Kind::kReal;
  if (!numeric && value.kind != Kind::kUntyped) return false;
  if (!absl::SimpleAtod(value.text, &number) || !(number >= low && number <= high)) return false;
  *out = number;
  return true;
}

bool SetBandwidth(const ConfigValue& value, double* out) {
  if (value.kind == Kind::kTexts || value.kind == Kind::kOther) return false;
  const absl::StatusOr<double> bytes_per_s = ParseBandwidth(value.text);
  if (bytes_per_s.ok()) *out = *bytes_per_s;
  return bytes_per_s.ok();
}

bool SetScaled(const ConfigValue& value, double low, double high, double scale, double* out) {
  double number = 0;
  if (!SetReal(value, low, high, &number)) return false;
  *out = number * scale;
  return true;
}

bool SetDuration(const ConfigValue& value, absl::Duration low, absl::Duration high,
                 absl::Duration* out) {
  absl::Duration duration;
  if (value.kind != Kind::kText && value.kind != Kind::kUntyped) return false;
  if (!absl::ParseDuration(value.text, &duration) || duration < low || duration > high) {
    return false;
  }
  *out = duration;
  return true;
}

bool SetAddress(const ConfigValue& value, bool unix_allowed, Address* out) {
  if (value.kind != Kind::kText && value.kind != Kind::kUntyped) return false;
  absl::StatusOr<Address> address = ParseAddress(value.text);
  if (!address.ok() || (address->is_unix() && !unix_allowed)) return false;
  *out = *std::move(address);
  return true;
}

bool SetPath(const ConfigValue& value, std::string* out) {
  *out = value.text;
  return !value.text.empty() && (value.kind == Kind::kText || value.kind == Kind::kUntyped);
}

bool SetHostNames(const ConfigValue& value, std::vector<std::string>* out) {
  if (value.kind == Kind::kTexts) {
    *out = value.texts;
  } else if (value.kind == Kind::kText || value.kind == Kind::kUntyped) {
    *out = absl::StrSplit(value.text, ',', absl::SkipEmpty());
  } else {
    return false;
  }
  return out->size() <= kMaxHostNames && std::all_of(out->begin(), out->end(), IsHostName);
}

std::string ValueText(int32_t value) { return absl::StrCat(value); }
std::string ValueText(int64_t value) { return absl::StrCat(value); }

std::string ValueText(double value) {
  constexpr size_t kEnough = 32;
  std::string text(kEnough, '\0');
  const std::to_chars_result end = std::to_chars(text.data(), text.data() + text.size(), value);
  text.resize(static_cast<size_t>(end.ptr - text.data()));
  return text;
}

std::string ValueText(absl::Duration value) {
  return value == absl::ZeroDuration() ? "0s" : absl::FormatDuration(value);
}

std::string ValueText(const Address& value) { return value.Text(); }
std::string ValueText(const std::string& value) { return value; }
std::string ValueText(const std::vector<std::string>& names) { return absl::StrJoin(names, ","); }

}  // namespace eplb
