#include "placement/digest.h"

#include <openssl/sha.h>

#include <bit>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the canonical encoding is little-endian");

void Append(std::string& encoding, const IndexMatrix& map) {
  encoding.append(reinterpret_cast<const char*>(map.data()),
                  static_cast<size_t>(map.size()) * sizeof(int32_t));
}

}  // namespace

std::string Digest::Hex() const {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

absl::StatusOr<Digest> Digest::FromHex(std::string_view hex) {
  Digest digest;
  for (const char c : hex) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) {
      return absl::InvalidArgumentError("a digest has only hexadecimal characters");
    }
  }
  if (hex.size() != 2 * digest.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a digest has 64 hexadecimal characters, this has ", hex.size()));
  }
  const std::string bytes = absl::HexStringToBytes({hex.data(), hex.size()});
  std::copy(bytes.begin(), bytes.end(), digest.bytes.begin());
  return digest;
}

int64_t Digest::VoteBits() const {
  uint64_t bits = 0;
  for (int i = 0; i < 8; ++i) bits = bits << 8 | bytes[static_cast<size_t>(i)];
  bits >>= 1;
  return bits == 0 ? 1 : static_cast<int64_t>(bits);
}

Digest Sha256(std::string_view bytes) {
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest.bytes.data());
  return digest;
}

Digest DigestOf(const Placement& placement) {
  const Topology& t = placement.topology();
  std::string encoding = "eplb.placement.v1";
  for (const int32_t number : {t.num_layers(), t.num_experts(), t.num_slots(), t.num_gpus(),
                               t.num_nodes(), t.num_groups(), placement.max_replicas()}) {
    encoding.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  Append(encoding, placement.physical_to_logical_map());
  Append(encoding, placement.logical_replica_count());
  Append(encoding, placement.logical_to_physical_map());
  return Sha256(encoding);
}

}  // namespace eplb
