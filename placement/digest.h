// SHA-256 identity of a placement: two ranks with the same digest route every token alike.
// threads: safe, no state.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "placement/placement.h"

namespace eplb {

struct Digest {
  std::array<uint8_t, 32> bytes{};

  // Lower-case hexadecimal, 64 characters.
  std::string Hex() const;
  // errors: InvalidArgument unless `hex` is 64 hexadecimal characters.
  static absl::StatusOr<Digest> FromHex(std::string_view hex);
  // The first 63 bits, 0 replaced by 1: what a vote carries, where 0 means "not ready".
  int64_t VoteBits() const;

  friend bool operator==(const Digest&, const Digest&) = default;
};

// Covers the shape, physical_to_logical_map, logical_replica_count and the *derived*
// logical_to_physical_map, so that a corrupted derived table is found too. Encoding:
// "eplb.placement.v1", then little-endian int32 of L, E, S, G, N, K, X, then the three maps row by
// row. cost: O(L * (S + E * X)).
Digest DigestOf(const Placement& placement);

// SHA-256 of any bytes, for the hash of a migration plan.
Digest Sha256(std::string_view bytes);

}  // namespace eplb
