#include "client/cli/formats/npy.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/yaml_json.h"

namespace eplb {

namespace {

absl::Status WrongType(const std::string& descr) {
  const char* why = "";
  if (descr.ends_with("f2")) why = " (float16 cannot hold counts above 2048 exactly)";
  if (descr.starts_with(">")) why = " (big endian)";
  if (descr.ends_with("O")) why = " (a pickle)";
  return InvalidInput("has the dtype ", Clipped(descr, 32), why,
                      ", expected a little-endian int8..int64, uint8..uint64, float32 or float64");
}

// In numbers, not in bytes.
std::vector<int64_t> StridesOf(const std::vector<int64_t>& shape, bool fortran_order) {
  std::vector<int64_t> strides(shape.size());
  int64_t next = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    const size_t dimension = fortran_order ? i : shape.size() - 1 - i;
    strides[dimension] = next;
    next *= shape[dimension];
  }
  return strides;
}

// Reads the header's Python dictionary {'descr': '<i8', 'fortran_order': False, 'shape': (3, 4), },
// which is YAML as well when its tuple has brackets. Leaves `data` empty.
absl::StatusOr<Array> ParseDictionary(std::string text) {
  std::ranges::replace(text, '(', '[');
  std::ranges::replace(text, ')', ']');
  const absl::StatusOr<std::string> json = YamlToJson(text);
  if (!json.ok()) return InvalidInput("the header is not numpy's dictionary");
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue dictionary, wire::ParseJson(*json));
  EPLB_ASSIGN_OR_RETURN(const std::string descr, wire::GetString(dictionary, "descr"));
  EPLB_ASSIGN_OR_RETURN(const std::string order, wire::GetString(dictionary, "fortran_order"));
  EPLB_ASSIGN_OR_RETURN(const wire::JsonNumbers* shape, wire::GetNumbers(dictionary, "shape", 1));
  EPLB_RETURN_IF_ERROR(wire::CheckIntegers(*shape, "shape", "1..2^28"));
  if (dictionary.members.size() != 3 || (order != "True" && order != "False")) {
    return InvalidInput(
        "the header has other keys, or a fortran_order that is neither True nor False");
  }
  const NumberType* const type = FindNumberType(&NumberType::numpy, descr);
  if (type == nullptr) return WrongType(descr);
  EPLB_RETURN_IF_ERROR(CountNumbers(shape->integers).status());
  return Array{.type = type,
               .shape = shape->integers,
               .strides = StridesOf(shape->integers, order == "True")};
}

}  // namespace

bool IsNpy(std::string_view bytes) {
  return bytes.starts_with(kNpyMagic) || kNpyMagic.starts_with(bytes);
}

// source: the format's description in numpy/lib/format.py.
absl::StatusOr<Array> ParseNpy(std::string_view bytes) {
  if (!bytes.starts_with(kNpyMagic)) return InvalidInput("does not begin with the magic of .npy");
  auto byte = [bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  constexpr size_t kVersionAt = 6;
  constexpr size_t kLengthAt = 8;
  if (bytes.size() < kLengthAt + 4) return InvalidInput("truncated in the header");
  const int version = byte(kVersionAt);
  if (version < 1 || version > 3 || byte(kVersionAt + 1) != 0) {
    return InvalidInput("has .npy version ", version, ".", byte(kVersionAt + 1),
                        ", expected 1.0 to 3.0");
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  const size_t length = LittleEndian(bytes.substr(kLengthAt, length_bytes));
  const size_t start = kLengthAt + length_bytes;
  if (length > bytes.size() - start) {
    return InvalidInput("truncated in the header: it claims ", length, " bytes, ",
                        bytes.size() - start, " follow");
  }
  EPLB_ASSIGN_OR_RETURN(Array array, ParseDictionary(std::string(bytes.substr(start, length))));
  array.data = bytes.substr(start + length);
  const int64_t expected = *CountNumbers(array.shape) * array.type->size;
  if (std::ssize(array.data) != expected) {
    return InvalidInput(std::ssize(array.data) < expected ? "truncated: " : "too long: ", "has ",
                        array.data.size(), " bytes of numbers, the header claims ", expected);
  }
  return array;
}

absl::StatusOr<std::vector<LoadWindow>> ParseLoadNpy(std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(Array array, ParseNpy(bytes));
  return LoadsFromArray(std::move(array));
}

}  // namespace eplb
