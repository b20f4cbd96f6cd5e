#include "base/json_value.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/status_macros.h"

#include <nlohmann/json.hpp>

namespace eplb::wire {
namespace {

using Kind = JsonValue::Kind;

constexpr size_t kMaxDepth = 32;
constexpr int64_t kMaxNumbers = int64_t{1} << 28;
// In arrays: an empty object of 2 bytes takes some 250 in memory.
constexpr int64_t kMaxObjects = int64_t{1} << 18;
constexpr size_t kMaxMessage = 160;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// The parser's message without its own prefix, short and printable: it may quote bytes of the file.
std::string Readable(std::string_view message) {
  if (const size_t end = message.find("] "); end != std::string_view::npos) {
    message.remove_prefix(end + 2);
  }
  if (const size_t at = message.find("at line"); at != std::string_view::npos && at < 16) {
    message.remove_prefix(at + 3);
  }
  return Clipped(message, kMaxMessage);
}

// Builds the value while the parser reads. An open array inside an array adds to the outermost one;
// an object inside such an inner array is read for duplicate keys only.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(JsonValue* root, size_t max_keys) : root_(root), max_keys_(max_keys) {}

  const std::string& error() const { return error_; }

  bool null() override {
    Put(Kind::kNull, 0, 0);
    return true;
  }
  bool boolean(bool value) override {
    Put(Kind::kBool, 0, 0).boolean = value;
    return true;
  }
  bool number_integer(number_integer_t value) override {
    return PutNumber(Kind::kInteger, value, static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max())) {
      return PutTooLarge(std::to_string(value), static_cast<double>(value));
    }
    return PutNumber(Kind::kInteger, static_cast<int64_t>(value), static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t& text) override {
    if (text.find_first_of(".eE") == std::string::npos) return PutTooLarge(text, value);
    if (InKeptArray()) {
      JsonNumbers& numbers = frames_.back().value->numbers;
      Note(text, numbers, numbers.fraction, numbers.fraction_index);
    }
    return PutNumber(Kind::kReal, 0, value);
  }
  bool string(string_t& value) override {
    Put(Kind::kString, 0, 0).text = std::move(value);
    return true;
  }
  bool binary(binary_t& /*value*/) override { return Fail("binary data"); }

  bool start_object(std::size_t /*elements*/) override { return Open(Kind::kObject); }
  bool key(string_t& name) override {
    Frame& frame = frames_.back();
    if (frame.keys.size() >= max_keys_) {
      return Fail(absl::StrCat("an object with more than ", max_keys_, " keys"));
    }
    if (!frame.keys.insert(name).second) {
      return Fail(
          absl::StrCat("key ", JsonQuote(FirstCharacters(name, kMaxMessage)), " is given twice"));
    }
    if (frame.value != nullptr) frame.value->members.push_back({std::move(name), {}});
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t /*elements*/) override { return Open(Kind::kArray); }
  bool end_array() override { return Close(); }

  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& exception) override {
    return Fail(Readable(exception.what()));
  }

 private:
  struct Frame {
    bool is_object = false;
    JsonValue* value = nullptr;  // array: the outermost; null when it is not kept
    size_t depth = 0;            // array: depth inside the outermost one
    std::set<std::string> keys;
  };

  bool Fail(std::string message) {
    if (error_.empty()) error_ = std::move(message);
    return false;
  }

  // Returns the place of the value that is read now; null if it is not kept.
  JsonValue* Slot() {
    if (frames_.empty()) return root_;
    const Frame& frame = frames_.back();
    if (!frame.is_object || frame.value == nullptr) return nullptr;
    return &frame.value->members.back().value;
  }

  // REQUIRES: the top frame is an array that is kept. "[0][3]" of its newest entry.
  std::string Place() const {
    std::string place;
    const Frame& frame = frames_.back();
    for (size_t depth = 0; depth <= frame.depth; ++depth) {
      absl::StrAppend(&place, "[", frame.value->numbers.children[depth].back() - 1, "]");
    }
    return place;
  }

  bool InKeptArray() const {
    return !frames_.empty() && !frames_.back().is_object && frames_.back().value != nullptr;
  }

  // Counts an entry of the open array; says what is wrong with it, once.
  void CountEntry(std::string_view kind, bool is_number) {
    Frame& frame = frames_.back();
    JsonNumbers& numbers = frame.value->numbers;
    ++numbers.children[frame.depth].back();
    const bool deeper = numbers.num_numbers() > 0 && is_number != (frame.depth == leaf_depth_);
    const bool is_array = kind == KindName(Kind::kArray);
    if (!numbers.problem.empty()) return;
    if (!is_number && !is_array) {
      numbers.problem = absl::StrCat(Place(), " is ", View(kind));
    } else if (deeper) {
      numbers.problem = absl::StrCat(Place(), " is ", View(kind), ", its neighbours are not");
    }
  }

  JsonValue& Put(Kind kind, int64_t integer, double real) {
    if (InKeptArray()) CountEntry(KindName(kind), false);
    JsonValue* slot = Slot();
    JsonValue& value = slot != nullptr ? *slot : ignored_;
    value.kind = kind;
    value.integer = integer;
    value.real = real;
    return value;
  }

  bool PutNumber(Kind kind, int64_t integer, double real) {
    if (!InKeptArray()) {
      Put(kind, integer, real);
      return true;
    }
    if (++num_numbers_ > kMaxNumbers) {
      return Fail(absl::StrCat("more than ", kMaxNumbers, " numbers"));
    }
    CountEntry(KindName(kind), true);
    JsonNumbers& numbers = frames_.back().value->numbers;
    if (numbers.num_numbers() == 0) leaf_depth_ = frames_.back().depth;
    if (kind == Kind::kInteger && numbers.all_integers()) {
      numbers.integers.push_back(integer);
      return true;
    }
    if (numbers.all_integers()) {
      numbers.reals.assign(numbers.integers.begin(), numbers.integers.end());
      numbers.integers = {};
    }
    numbers.reals.push_back(real);
    return true;
  }

  // Keeps the literal that is put next, once.
  static void Note(const std::string& text, const JsonNumbers& numbers, std::string& literal,
                   int64_t& index) {
    if (index >= 0) return;
    literal = text.substr(0, kMaxMessage);
    index = static_cast<int64_t>(numbers.num_numbers());
  }

  bool PutTooLarge(const std::string& text, double real) {
    if (InKeptArray()) {
      JsonNumbers& numbers = frames_.back().value->numbers;
      Note(text, numbers, numbers.too_large, numbers.too_large_index);
    }
    return PutNumber(Kind::kReal, 0, real);
  }

  bool Open(Kind kind) {
    if (frames_.size() >= kMaxDepth) {
      return Fail(absl::StrCat("nested deeper than ", kMaxDepth, " levels"));
    }
    Frame frame{.is_object = kind == Kind::kObject, .keys = {}};
    if (InKeptArray()) {
      CountEntry(KindName(kind), false);
      if (kind == Kind::kArray) {
        frame.value = frames_.back().value;
        frame.depth = frames_.back().depth + 1;
      } else if (frames_.back().depth == 0) {
        if (++num_objects_ > kMaxObjects) {
          return Fail(absl::StrCat("more than ", kMaxObjects, " objects in arrays"));
        }
        frame.value = &frames_.back().value->objects.emplace_back();
        frame.value->kind = kind;
      }
    } else if (JsonValue* slot = Slot(); slot != nullptr) {
      slot->kind = kind;
      frame.value = slot;
    }
    if (kind == Kind::kArray && frame.value != nullptr) {
      auto& children = frame.value->numbers.children;
      if (children.size() <= frame.depth) children.resize(frame.depth + 1);
      children[frame.depth].push_back(0);
    }
    frames_.push_back(std::move(frame));
    return true;
  }

  bool Close() {
    frames_.pop_back();
    return true;
  }

  JsonValue* root_;
  size_t max_keys_;
  JsonValue ignored_;
  std::vector<Frame> frames_;
  int64_t num_numbers_ = 0;  // in arrays
  int64_t num_objects_ = 0;  // in arrays
  size_t leaf_depth_ = 0;    // depth of the numbers of the open array
  std::string error_;
};

absl::Status WrongKind(std::string_view name, const JsonValue& value, std::string_view expected) {
  return InvalidInput(View(name), name.empty() ? "" : " ", "is ", View(KindName(value.kind)),
                      ", expected ", View(expected));
}

}  // namespace

const JsonValue* JsonValue::Find(std::string_view key) const {
  const auto found =
      std::ranges::find_if(members, [key](const JsonMember& member) { return member.key == key; });
  return found == members.end() ? nullptr : &found->value;
}

std::string_view KindName(JsonValue::Kind kind) {
  constexpr std::string_view kNames[] = {"null",     "a boolean", "an integer", "a number",
                                         "a string", "an array",  "an object"};
  static_assert(std::size(kNames) == static_cast<size_t>(Kind::kObject) + 1);
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<JsonValue> ParseJson(std::string_view text, size_t max_keys) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return InvalidInput("empty, expected JSON");
  }
  if (text.substr(0, 3) == "\xEF\xBB\xBF") {
    return InvalidInput("starts with a byte order mark, expected plain UTF-8 JSON");
  }
  JsonValue root;
  Builder builder(&root, max_keys);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    return InvalidInput(builder.error().empty() ? "not JSON" : builder.error());
  }
  return root;
}

absl::StatusOr<const JsonValue*> GetMember(const JsonValue& object, std::string_view key) {
  const JsonValue* value = object.Find(key);
  if (value == nullptr) return InvalidInput(View(key), " is missing");
  return value;
}

absl::StatusOr<int64_t> GetInteger(const JsonValue& object, std::string_view key) {
  EPLB_ASSIGN_OR_RETURN(const JsonValue* value, GetMember(object, key));
  if (value->kind != Kind::kInteger) return WrongKind(key, *value, "an integer");
  return value->integer;
}

absl::StatusOr<std::string> GetString(const JsonValue& object, std::string_view key) {
  EPLB_ASSIGN_OR_RETURN(const JsonValue* value, GetMember(object, key));
  if (value->kind != Kind::kString) return WrongKind(key, *value, "a string");
  return value->text;
}

absl::StatusOr<const JsonNumbers*> GetNumbers(const JsonValue& object, std::string_view key,
                                              size_t depth) {
  EPLB_ASSIGN_OR_RETURN(const JsonValue* value, GetMember(object, key));
  return AsNumbers(*value, key, depth);
}

absl::StatusOr<const JsonNumbers*> AsNumbers(const JsonValue& value, std::string_view name,
                                             size_t depth) {
  if (value.kind != Kind::kArray) return WrongKind(name, value, "an array");
  const JsonNumbers& numbers = value.numbers;
  if (!numbers.problem.empty()) {
    return InvalidInput(View(name), numbers.problem, ", expected numbers in ", depth, " levels");
  }
  if (numbers.children.size() != depth) {
    return InvalidInput(View(name), name.empty() ? "" : " ", "has ", numbers.children.size(),
                        " levels of arrays, expected ", depth);
  }
  return &numbers;
}

absl::Status CheckIntegers(const JsonNumbers& numbers, std::string_view name,
                           std::string_view range) {
  if (numbers.all_integers()) return absl::OkStatus();
  const bool fraction =
      numbers.fraction_index >= 0 &&
      (numbers.too_large_index < 0 || numbers.fraction_index < numbers.too_large_index);
  const int64_t index = fraction ? numbers.fraction_index : numbers.too_large_index;
  return InvalidInput(View(name), PlaceOf(numbers, index), " is ",
                      fraction ? numbers.fraction : numbers.too_large, ", expected ",
                      fraction ? View("an integer") : View(range));
}

std::string PlaceOf(const JsonNumbers& numbers, int64_t index) {
  std::string place;
  for (size_t depth = numbers.children.size(); depth-- > 0;) {
    const std::vector<int64_t>& arrays = numbers.children[depth];
    size_t array = 0;
    while (array < arrays.size() && index >= arrays[array]) index -= arrays[array++];
    place = absl::StrCat("[", index, "]", place);
    index = static_cast<int64_t>(array);
  }
  return place;
}

std::string JsonQuote(std::string_view text) {
  return EscapedJson(nlohmann::json(std::string(text))
                         .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace eplb::wire
