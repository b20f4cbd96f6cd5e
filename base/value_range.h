// Ranges of settings: each reads a written value, checks a value that a program holds, and
// describes in words what it expects.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace eplb {

struct WrittenValue {
  enum class Kind { kInteger, kReal, kText, kTexts, kUntyped, kOther };
  Kind kind = Kind::kUntyped;           // kUntyped: a variable or a flag, read as its key needs it
  std::string text = {};                // messages show the same text
  std::vector<std::string> texts = {};  // for kTexts: an array of strings

  bool is_text() const { return kind == Kind::kText || kind == Kind::kUntyped; }
};

using Scalar = std::variant<int64_t, double, absl::Duration, std::string>;

// Returns a text that every range below reads back as this value; for a number the shortest one.
std::string ScalarText(const Scalar& value);

// T: an integer, double, absl::Duration or std::string.
template <class T>
Scalar ToScalar(const T& value) {
  if constexpr (std::is_integral_v<T>) return int64_t{value};
  if constexpr (!std::is_integral_v<T>) return value;
}
template <class T>
T FromScalar(const Scalar& value) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(std::get<int64_t>(value));
  if constexpr (!std::is_integral_v<T>) return std::get<T>(value);
}

// Each range has these functions.
//   Read      returns the value; none if `written` has another kind or is out of range.
//   Holds     returns true if a value that was not written, such as a message's, is in range.
//   Expected  returns words for messages and the help: "an integer in 1..5".

struct IntegerRange {
  int64_t low = 0;
  int64_t high = 0;
  std::string_view note = {};  // about a special value, "0: not known"

  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;
};

struct NumberRange {
  double low = 0;
  double high = 0;
  std::string_view note = {};

  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;
};

struct DurationRange {
  absl::Duration low;
  absl::Duration high;
  std::string_view example;  // "60s"

  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;
};

// One of a few words.
struct WordRange {
  std::array<std::string_view, 4> words;  // empty at the end if there are fewer

  std::optional<Scalar> Read(const WrittenValue& written) const;
  bool Holds(const Scalar& value) const;
  std::string Expected() const;
};

// A text with a grammar of its own, such as a list.
struct TextRange {
  // Returns the one form of the text that means the same; none if the value is out of range.
  std::optional<std::string> (*canonical)(const WrittenValue& written);
  std::string expected;
  std::string_view empty_form = {};  // word for the empty text, "none"

  std::optional<Scalar> Read(const WrittenValue& written) const { return canonical(written); }
  bool Holds(const Scalar& value) const;
  std::string Expected() const { return expected; }
};

}  // namespace eplb
