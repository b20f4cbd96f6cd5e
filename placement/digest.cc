#include "placement/digest.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <span>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"

#include "base/errors.h"
#include "base/hex.h"

namespace eplb {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the canonical encoding is little-endian");

// SHA-256 of numbers as they come: the encoding may be far larger than the placement.
class Encoder {
 public:
  Encoder() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr);
  }
  void Append(std::string_view text) { EVP_DigestUpdate(context_.get(), text.data(), text.size()); }
  void Append(std::span<const int32_t> numbers) {
    EVP_DigestUpdate(context_.get(), numbers.data(), numbers.size_bytes());
  }
  Digest Finish() {
    Digest digest;
    EVP_DigestFinal_ex(context_.get(), digest.bytes.data(), nullptr);
    return digest;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

void Append(Encoder& encoder, const IndexMatrix& map) {
  encoder.Append(std::span<const int32_t>(map.data(), static_cast<size_t>(map.size())));
}

// The rows of logical_to_physical_map(), a few experts at a time.
void AppendReplicas(Encoder& encoder, const Placement& placement) {
  constexpr size_t kFlush = 16384;
  const Topology& topology = placement.topology();
  std::vector<int32_t> block;
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      const auto slots = placement.ReplicasOf(LayerId{layer}, ExpertId{expert});
      block.insert(block.end(), slots.begin(), slots.end());
      block.insert(block.end(), static_cast<size_t>(placement.max_replicas()) - slots.size(), -1);
      if (block.size() < kFlush) continue;
      encoder.Append(block);
      block.clear();
    }
  }
  encoder.Append(block);
}

}  // namespace

std::string Digest::Hex() const {
  return absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

absl::StatusOr<Digest> Digest::FromHex(std::string_view hex) {
  Digest digest;
  for (const char c : hex) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) {
      return InvalidInput("a digest has only hexadecimal characters");
    }
  }
  if (hex.size() != 2 * digest.bytes.size()) {
    return InvalidInput("a digest has 64 hexadecimal characters, this has ", hex.size());
  }
  const std::string bytes = BytesFromHex(hex).value_or("");
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
  const int32_t numbers[] = {t.num_layers(), t.num_experts(), t.num_slots(),           t.num_gpus(),
                             t.num_nodes(),  t.num_groups(),  placement.max_replicas()};
  Encoder encoder;
  encoder.Append("eplb.placement.v1");
  encoder.Append(numbers);
  Append(encoder, placement.physical_to_logical_map());
  Append(encoder, placement.logical_replica_count());
  AppendReplicas(encoder, placement);
  return encoder.Finish();
}

}  // namespace eplb
