// Archives of numpy.savez: a zip of .npy members. Also tells dumps of torch.save, which are zips,
// too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eplb {

inline constexpr std::string_view kZipMagic = "PK\x03\x04";
// Bytes of an unpacked member. Deflate shrinks zeros a thousand times, so the claim is checked
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

// True for a file of torch.save, which only Python can read: a zip whose first member is
// */data.pkl, or a bare pickle as old versions wrote.
bool IsTorchDump(std::string_view bytes);

// An InvalidArgument error that names the program that reads such files.
absl::Status TorchDumpError();

}  // namespace eplb
