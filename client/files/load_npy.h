// Loads written by numpy.save.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_LOAD_NPY_H_
#define EPLB_CLIENT_FILES_LOAD_NPY_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/files/load_window.h"

namespace eplb {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

// [layers, experts], or [windows, layers, experts] oldest first; int8..int64, uint8..uint64 (up to
// 2^63-1), float32 or float64; little endian; C or Fortran order; header versions 1 to 3.
// errors: InvalidArgument saying what differs: magic, header, dtype, number of dimensions, a size
// that is not that of the data, what Load refuses. Nothing is allocated from a size that the bytes
// do not bear out.
absl::StatusOr<std::vector<LoadWindow>> ParseLoadNpy(std::string_view bytes);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_LOAD_NPY_H_
