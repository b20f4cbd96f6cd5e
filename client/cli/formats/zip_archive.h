// Zip archives: their members, read with limits and written so that the bytes repeat.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb {

inline constexpr std::string_view kZipMagic = "PK\x03\x04";

struct ZipLimits {
  int64_t max_members = 64;
  bool stored_only = false;  // refuses what is compressed
};

using ZipMembers = std::map<std::string, std::string>;  // bytes by name

// errors: InvalidArgument: no zip, cut off, a checksum that differs, a member that is encrypted, a
// name given twice, more or larger members than allowed.
absl::StatusOr<ZipMembers> ReadZip(std::string_view bytes, const ZipLimits& limits = {});

struct ZipMember {
  std::string name;
  std::string bytes;
};

// Members stored as they are, dated 1980: the same members give the same bytes. errors: Internal.
absl::StatusOr<std::string> WriteZip(const std::vector<ZipMember>& members);

}  // namespace eplb
