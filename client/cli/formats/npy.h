// The header of a .npy file: what lies in front of the numbers.
// threads: safe, no state.
#ifndef EPLB_CLIENT_CLI_FORMATS_NPY_H_
#define EPLB_CLIENT_CLI_FORMATS_NPY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cli/formats/load_window.h"

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

// Loads written by numpy.save.
// threads: safe, no state.

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

// [layers, experts], or [windows, layers, experts] oldest first; int8..int64, uint8..uint64 (up to
// 2^63-1), float32 or float64; little endian; C or Fortran order; header versions 1 to 3.
// errors: InvalidArgument saying what differs: magic, header, dtype, number of dimensions, a size
// that is not that of the data, what Load refuses. Nothing is allocated from a size that the bytes
// do not bear out.
absl::StatusOr<std::vector<LoadWindow>> ParseLoadNpy(std::string_view bytes);

// Archives of numpy.savez: a zip of .npy members.
// threads: safe, no state.

inline constexpr std::string_view kZipMagic = "PK\x03\x04";
// Of a member when it is unpacked. Deflate shrinks zeros a thousand times: the claim is checked
// before memory is taken, and the memory grows with the bytes that are really there.
inline constexpr int64_t kMaxMemberBytes = int64_t{1} << 28;
inline constexpr int64_t kMaxMembers = 64;

struct NpzMember {
  std::string name;   // without .npy
  std::string bytes;  // a .npy file
};

// errors: InvalidArgument: no zip, cut off, zip64, a checksum that differs, a member that is
// encrypted or not named *.npy, a name given twice, more or larger members than above.
absl::StatusOr<std::vector<NpzMember>> ParseNpz(std::string_view bytes);

// Members stored as they are, dated 1980: the same members give the same bytes. errors: Internal.
absl::StatusOr<std::string> NpzBytes(const std::vector<NpzMember>& members);

// Files of torch.save, which only Python can read: they are pickles.
// threads: safe, no state.

// A zip whose first member is */data.pkl, or a bare pickle as old versions wrote.
bool IsTorchDump(std::string_view bytes);

// InvalidArgument that says what reads them.
absl::Status TorchDumpError();

}  // namespace eplb

#endif  // EPLB_CLIENT_CLI_FORMATS_NPY_H_
