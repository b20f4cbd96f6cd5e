// Arrays of numbers that lie in the bytes of a file, as numpy and torch store them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/formats/load_window.h"

namespace eplb {

// Returns the number that up to 8 bytes are, without a sign.
uint64_t LittleEndian(std::string_view bytes);

// How a number is stored, little endian.
struct NumberType {
  std::string_view numpy;  // name in the header of a .npy file, e.g. "<i8"; may be empty
  std::string_view torch;  // name of the storages that have it, e.g. "LongStorage"; may be empty
  int64_t size;            // bytes
  // Exactly one of the two is set. A uint64 above 2^63-1 comes out negative.
  int64_t (*integer)(const char* at);
  double (*real)(const char* at);
};

// Returns the type that a library calls `name`, or null. library: &NumberType::numpy, for example.
const NumberType* FindNumberType(std::string_view NumberType::*library, std::string_view name);

struct Array {
  const NumberType* type = nullptr;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // distance of two neighbours in each dimension, in numbers
  std::string_view data;         // begins with the first number; not aligned
  std::shared_ptr<const std::string> owner = {};  // holds `data`, unless the caller does

  // Address of a number of an array of three dimensions, or of two without `k`.
  const char* At(int64_t i, int64_t j, int64_t k = 0) const {
    const int64_t inner = k == 0 ? 0 : k * strides[2];
    return data.data() + type->size * (i * strides[0] + j * strides[1] + inner);
  }
};

// Returns the number of numbers. errors: InvalidArgument for a dimension of size 0 or below, and
// for more than 2^28 numbers.
absl::StatusOr<int64_t> CountNumbers(const std::vector<int64_t>& shape);

// The loads of an array [layers, experts], or [windows, layers, experts] oldest first. errors:
// InvalidArgument for another number of dimensions, and what Load refuses.
absl::StatusOr<std::vector<LoadWindow>> LoadsFromArray(Array array);

}  // namespace eplb
