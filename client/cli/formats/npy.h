// Files of numpy.save.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cli/formats/arrays.h"

namespace eplb {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

// True for a file with the magic, and for a shorter one that ends within the magic.
bool IsNpy(std::string_view bytes);

// Reads int8..int64, uint8..uint64, float32 and float64; little endian; C or Fortran order; header
// versions 1 to 3. The array refers to `bytes`. errors: InvalidArgument saying what differs: magic,
// header, dtype, a size that is not that of the data. Nothing is allocated from a size that the
// bytes do not bear out.
absl::StatusOr<Array> ParseNpy(std::string_view bytes);

// Reads the array as LoadsFromArray does. errors: as both.
absl::StatusOr<std::vector<LoadWindow>> ParseLoadNpy(std::string_view bytes);

}  // namespace eplb
