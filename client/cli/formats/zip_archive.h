// Zip archives: their members, read with limits and written so that the bytes repeat.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eplb {

inline constexpr std::string_view kZipMagic = "PK\x03\x04";
// Bytes of an unpacked member. Deflate shrinks zeros a thousand times, so the claim is checked
// before memory is taken, and the memory grows with the bytes that are really there.
inline constexpr int64_t kMaxMemberBytes = int64_t{1} << 28;

struct ZipMember {
  std::string name;
  std::string bytes;
  bool is_stored = true;  // not compressed
};

// Returns the members whose names `wanted` accepts, in the order of the archive. errors:
// InvalidArgument: no zip, cut off, more than `max_members` members; for one that is wanted: a
// checksum that differs, encrypted, a name given twice, too large.
absl::StatusOr<std::vector<ZipMember>> ReadZip(
    std::string_view bytes, int64_t max_members,
    const std::function<bool(std::string_view name)>& wanted);

// Returns the error of a member, which it names.
absl::Status InMember(std::string_view name, absl::string_view message);

// Members stored as they are, dated 1980: the same members give the same bytes. errors: Internal.
absl::StatusOr<std::string> WriteZip(const std::vector<ZipMember>& members);

}  // namespace eplb
