// A strict JSON reader for files full of numbers: nested number arrays stay flat, so that a load of
// millions of counts costs 8 bytes a count.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eplb::wire {

// Arrays of arrays of .. numbers. [[1,2],[3]] has children {{2},{2,1}} and integers {1,2,3}.
struct JsonNumbers {
  // children[d][i]: entries of the i-th array at depth d, in reading order; children[0] has one.
  std::vector<std::vector<int64_t>> children;
  // The numbers in reading order: as int64 while each is one, else all of them in `reals`.
  std::vector<int64_t> integers;
  std::vector<double> reals;
  // The first integer literal outside int64, as written, and its index among the numbers.
  std::string too_large;
  int64_t too_large_index = -1;
  // The first number with a fraction or an exponent, likewise.
  std::string fraction;
  int64_t fraction_index = -1;
  // Why this is not an array of numbers of one depth, e.g. "[0][3] is a string"; empty when it is.
  std::string problem;

  bool all_integers() const { return reals.empty(); }
  size_t num_numbers() const { return all_integers() ? integers.size() : reals.size(); }
};

struct JsonMember;

struct JsonValue {
  enum class Kind { kNull, kBool, kInteger, kReal, kString, kArray, kObject };

  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;  // also set for integers
  std::string text;
  JsonNumbers numbers;              // array: its numbers
  std::vector<JsonMember> members;  // object: its members, as written
  std::vector<JsonValue> objects;   // array: its entries that are objects

  bool is_object() const { return kind == Kind::kObject; }
  bool is_array() const { return kind == Kind::kArray; }
  // The member of that name, or none; none for what is no object.
  const JsonValue* Find(std::string_view key) const;
};

struct JsonMember {
  std::string key;
  JsonValue value;
};

// "an integer", "a string", ..: for messages.
std::string_view KindName(JsonValue::Kind kind);

inline constexpr size_t kMaxJsonKeys = 4096;

// Reads one JSON value and nothing after it. errors: InvalidArgument saying line and column: not
// JSON, empty, a byte order mark, a key given twice in one object, nesting above 32, more than
// `max_keys` keys in an object, 2^28 numbers or 2^18 objects in arrays, a number outside double's
// range. Throws nothing. cost: O(text).
absl::StatusOr<JsonValue> ParseJson(std::string_view text, size_t max_keys = kMaxJsonKeys);

// Members of an object by type. errors: InvalidArgument: "num_layers is missing", "num_layers is a
// string, expected an integer".
absl::StatusOr<const JsonValue*> GetMember(const JsonValue& object, std::string_view key);
absl::StatusOr<int64_t> GetInteger(const JsonValue& object, std::string_view key);
absl::StatusOr<std::string> GetString(const JsonValue& object, std::string_view key);
// An array of numbers of `depth` levels; may be ragged. errors: also for "load[0][3] is a string".
absl::StatusOr<const JsonNumbers*> GetNumbers(const JsonValue& object, std::string_view key,
                                              size_t depth);
// Reads `value` itself, see GetNumbers; messages call it `name`, which may be empty.
absl::StatusOr<const JsonNumbers*> AsNumbers(const JsonValue& value, std::string_view name,
                                             size_t depth);

// errors unless each number is an int64: "counts[0][3] is 1.5, expected an integer", and for a
// whole number "[0][3] is 99999999999999999999, expected " and the range. name: as AsNumbers.
absl::Status CheckIntegers(const JsonNumbers& numbers, std::string_view name,
                           std::string_view range);
// "[0][3]": where the number of that index stands. cost: O(arrays).
std::string PlaceOf(const JsonNumbers& numbers, int64_t index);

// Returns `text` as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD;
// characters that Printable would replace are escaped.
std::string JsonQuote(std::string_view text);

}  // namespace eplb::wire
