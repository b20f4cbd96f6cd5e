// Files of numpy.save: their header, loads, and tables of integers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/formats/load_window.h"

namespace eplb {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

struct NpyHeader {
  std::string descr;  // e.g. "<i8"
  bool fortran_order = false;
  std::vector<int64_t> shape;  // at most 8 dimensions, each 0..2^31
  size_t data_offset = 0;
};

// errors: InvalidArgument: wrong magic or version, cut off, a dictionary that is not that of numpy.
// source: the format's description in numpy/lib/format.py.
absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view bytes);

// [layers, experts], or [windows, layers, experts] oldest first; int8..int64, uint8..uint64 (up to
// 2^63-1), float32 or float64; little endian; C or Fortran order; header versions 1 to 3.
// errors: InvalidArgument saying what differs: magic, header, dtype, number of dimensions, a size
// that is not that of the data, what Load refuses. Nothing is allocated from a size that the bytes
// do not bear out.
absl::StatusOr<std::vector<LoadWindow>> ParseLoadNpy(std::string_view bytes);

// The integers of a .npy file, [rows, columns] or [rows, columns, depth]. A uint64 above 2^63-1
// comes out negative.
struct NpyIntegers {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t depth = 1;
  std::function<int64_t(int64_t row, int64_t column, int64_t inner)> at;  // refers to the bytes
};

// Reads int8..int64 and uint8..uint64, little endian, C or Fortran order. errors: InvalidArgument
// if the bytes are no such .npy, or have another number of dimensions.
absl::StatusOr<NpyIntegers> ParseNpyIntegers(std::string_view bytes, size_t dimensions);

}  // namespace eplb
