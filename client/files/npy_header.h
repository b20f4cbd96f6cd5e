// The header of a .npy file: what lies in front of the numbers.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_NPY_HEADER_H_
#define EPLB_CLIENT_FILES_NPY_HEADER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb {

struct NpyHeader {
  std::string descr;  // e.g. "<i8"
  bool fortran_order = false;
  std::vector<int64_t> shape;  // at most 8 dimensions, each 0..2^31
  size_t data_offset = 0;
};

// errors: InvalidArgument: wrong magic or version, cut off, a dictionary that is not that of numpy.
// source: the format's description in numpy/lib/format.py.
absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view bytes);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_NPY_HEADER_H_
