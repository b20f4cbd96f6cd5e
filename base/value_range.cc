// Ranges of settings: integers, numbers, durations, words and texts.
#include "base/value_range.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

#include "base/quantity.h"

namespace eplb {
namespace {

using Kind = WrittenValue::Kind;

std::string NumberText(double value) {
  constexpr size_t kEnough = 32;
  std::string text(kEnough, '\0');
  const std::to_chars_result end = std::to_chars(text.data(), text.data() + text.size(), value);
  text.resize(static_cast<size_t>(end.ptr - text.data()));
  return absl::StrReplaceAll(text, {{"e+0", "e"}, {"e+", "e"}});
}

std::string DurationText(absl::Duration value) {
  return value == absl::ZeroDuration() ? "0s" : absl::FormatDuration(value);
}

// absl's readers take blanks, signs and words such as inf, which are mistakes in a setting.
bool BeginsWithDigit(std::string_view text) {
  return !text.empty() && absl::ascii_isdigit(static_cast<unsigned char>(text.front()));
}

// A decimal number, with a sign only where numbers below 0 are in range.
bool IsDecimal(std::string_view text, bool signed_range) {
  if (signed_range && text.starts_with('-')) text.remove_prefix(1);
  return (BeginsWithDigit(text) || text.starts_with('.')) &&
         text.find_first_not_of("0123456789.eE+-") == std::string_view::npos;
}

template <class Range>
std::optional<Scalar> IfHeld(const Range& range, Scalar value) {
  if (!range.Holds(value)) return std::nullopt;
  return value;
}

// ", 0: not known"
std::string Note(std::string_view note) {
  return note.empty() ? "" : absl::StrCat("; ", std::string(note));
}

}  // namespace

std::string ScalarText(const Scalar& value) {
  return std::visit(
      [](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, int64_t>) return absl::StrCat(held);
        if constexpr (std::is_same_v<Held, double>) return NumberText(held);
        if constexpr (std::is_same_v<Held, absl::Duration>) return DurationText(held);
        if constexpr (std::is_same_v<Held, std::string>) return held;
      },
      value);
}

std::optional<Scalar> IntegerRange::Read(const WrittenValue& written) const {
  int64_t number = 0;
  const bool fits = written.kind == Kind::kInteger || written.kind == Kind::kUntyped;
  if (!fits || !IsDecimal(written.text, low < 0) || !absl::SimpleAtoi(written.text, &number)) {
    return std::nullopt;
  }
  return IfHeld(*this, number);
}

bool IntegerRange::Holds(const Scalar& value) const {
  const auto* number = std::get_if<int64_t>(&value);
  return number != nullptr && *number >= low && *number <= high;
}

std::string IntegerRange::Expected() const {
  return absl::StrCat("an integer in ", low, "..", high, Note(note));
}

std::optional<Scalar> NumberRange::Read(const WrittenValue& written) const {
  std::string_view text = written.text;
  // A fraction on a command line may be a percentage. A configuration file has numbers.
  if (written.kind == Kind::kUntyped && high <= 1 && text.ends_with('%')) text.remove_suffix(1);
  const bool fits = written.kind == Kind::kInteger || written.kind == Kind::kReal ||
                    written.kind == Kind::kUntyped;
  if (!fits || !IsDecimal(text, low < 0)) return std::nullopt;
  const std::optional<double> number = ParseFraction(written.text);
  if (!number) return std::nullopt;
  return IfHeld(*this, *number);
}

bool NumberRange::Holds(const Scalar& value) const {
  const auto* number = std::get_if<double>(&value);
  return number != nullptr && *number >= low && *number <= high;
}

std::string NumberRange::Expected() const {
  return absl::StrCat("a number in ", NumberText(low), "..", NumberText(high), Note(note));
}

std::optional<Scalar> DurationRange::Read(const WrittenValue& written) const {
  absl::Duration duration;
  if (!written.is_text() || !BeginsWithDigit(written.text) ||
      !absl::ParseDuration(written.text, &duration)) {
    return std::nullopt;
  }
  return IfHeld(*this, duration);
}

bool DurationRange::Holds(const Scalar& value) const {
  const auto* duration = std::get_if<absl::Duration>(&value);
  return duration != nullptr && *duration >= low && *duration <= high;
}

std::string DurationRange::Expected() const {
  return absl::StrCat("a duration such as \"", std::string(example), "\" in ", DurationText(low),
                      "..", DurationText(high));
}

std::optional<Scalar> WordRange::Read(const WrittenValue& written) const {
  if (!written.is_text()) return std::nullopt;
  return IfHeld(*this, written.text);
}

bool WordRange::Holds(const Scalar& value) const {
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr && !text->empty() && std::ranges::find(words, *text) != words.end();
}

std::string WordRange::Expected() const {
  const auto count = std::ranges::find(words, "") - words.begin();
  std::string expected;
  for (int64_t i = 0; i < count; ++i) {
    const char* between = i == 0 ? "" : i + 1 == count ? " or " : ", ";
    absl::StrAppend(&expected, between, "\"", std::string(words[static_cast<size_t>(i)]), "\"");
  }
  return expected;
}

bool TextRange::Holds(const Scalar& value) const {
  const auto* text = std::get_if<std::string>(&value);
  return text != nullptr && canonical({.kind = Kind::kText, .text = *text});
}

}  // namespace eplb
