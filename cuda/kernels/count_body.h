// The body of the token count: which counters four router choices add to. No barrier, no atomic:
// the caller adds, on the GPU with atomics, on the CPU plainly.
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/kernels/aligned_access.h"

namespace eplb::cuda {

enum class ExpertIdType { kInt32, kInt64 };

// Pointers are to device memory for LaunchCount, to host memory for CountOnHost.
struct CountArgs {
  const void* expert_ids =
      nullptr;  // [num_tokens, top_k], ids of id_type, row-major: the router's top-k
  ExpertIdType id_type = ExpertIdType::kInt32;
  const uint8_t* is_padding = nullptr;  // [num_tokens], not 0: leave the token out; null: none is
  int64_t num_tokens = 0;
  int32_t top_k = 0;
  int32_t num_experts = 0;
  int64_t* counts = nullptr;        // [num_experts], tokens per expert are added to it
  int64_t* out_of_range = nullptr;  // [1], choices outside 0..num_experts-1 are added to it
};
static_assert(std::is_trivially_copyable_v<CountArgs>);

inline constexpr int32_t kNoBin = -1;

// The token of choice `index`, 0..num_tokens*top_k-1. Their number is at most 2^31, and the GPU
// divides 32 bits several times faster than 64.
EPLB_HOST_DEVICE inline int64_t TokenOfChoice(const CountArgs& args, int64_t index) {
  return static_cast<uint32_t>(index) / static_cast<uint32_t>(args.top_k);
}

// The bin of a choice of `token` with this id: its expert, num_experts when the id is out of range,
// kNoBin for padding, whatever its id.
template <class ExpertId>
EPLB_HOST_DEVICE inline int32_t BinOfTokensId(const CountArgs& args, int64_t token, ExpertId id) {
  if (args.is_padding != nullptr && args.is_padding[token] != 0) return kNoBin;
  return id >= 0 && id < args.num_experts ? static_cast<int32_t>(id) : args.num_experts;
}

// Returns the bin of router choice `index`.
template <class ExpertId>
EPLB_HOST_DEVICE inline int32_t BinOfId(const CountArgs& args, int64_t index, ExpertId id) {
  return BinOfTokensId(args, TokenOfChoice(args, index), id);
}

// Choices that a thread takes at once: neighbours, which vectors load and store.
inline constexpr int32_t kQuad = 4;

template <class ExpertId>
struct alignas(16) IdQuad {
  ExpertId ids[kQuad];
};

struct BinQuad {
  int32_t bins[kQuad];  // see BinOfId; kNoBin after the last choice
};

struct TokenQuad {
  uint32_t tokens[kQuad];  // see TokenOfChoice
};

EPLB_HOST_DEVICE inline int64_t NumQuads(const CountArgs& args) {
  return (args.num_tokens * args.top_k + kQuad - 1) / kQuad;
}

// How many choices there are from those of `quad` on, 0..NumQuads-1: kQuad or more but for the
// last.
EPLB_HOST_DEVICE inline int64_t ChoicesFromQuad(const CountArgs& args, int64_t quad) {
  return args.num_tokens * args.top_k - quad * kQuad;
}

// The tokens of choices 4 * quad .. 4 * quad + 3, by one division.
EPLB_HOST_DEVICE inline TokenQuad TokensOfQuad(const CountArgs& args, int64_t quad) {
  const auto first = static_cast<uint32_t>(quad * kQuad);
  const auto top_k = static_cast<uint32_t>(args.top_k);
  uint32_t token = first / top_k;
  uint32_t next = (token + 1) * top_k - first;  // the next token's first choice, modulo 2^32
  TokenQuad result;
  EPLB_UNROLL
  for (int32_t i = 0; i < kQuad; ++i) {
    if (static_cast<uint32_t>(i) == next) {
      ++token;
      next += top_k;
    }
    result.tokens[i] = token;
  }
  return result;
}

// The bins of these choices, as far as there are such.
template <class ExpertId>
EPLB_HOST_DEVICE inline BinQuad BinsOfQuad(const CountArgs& args, int64_t quad,
                                           const TokenQuad& of) {
  const int64_t first = quad * kQuad;
  const int64_t left = ChoicesFromQuad(args, quad);
  const auto* ids = static_cast<const ExpertId*>(args.expert_ids) + first;
  // Loops of fixed length, which the GPU's compiler unrolls: the quads stay in registers.
  IdQuad<ExpertId> chosen{};
  if (left >= kQuad && IsAligned(ids, alignof(IdQuad<ExpertId>))) {
    chosen = LoadAligned<IdQuad<ExpertId>>(ids);
  } else {
    for (int32_t i = 0; i < kQuad; ++i) {
      if (i < left) chosen.ids[i] = ids[i];
    }
  }
  BinQuad result;
  for (int32_t i = 0; i < kQuad; ++i) {
    result.bins[i] = i < left ? BinOfTokensId(args, of.tokens[i], chosen.ids[i]) : kNoBin;
  }
  return result;
}
template <class ExpertId>
EPLB_HOST_DEVICE inline BinQuad BinsOfQuad(const CountArgs& args, int64_t quad) {
  return BinsOfQuad<ExpertId>(args, quad, TokensOfQuad(args, quad));
}

// The counter of a bin, 0..num_experts; never outside the two arrays.
EPLB_HOST_DEVICE inline int64_t* CountCell(const CountArgs& args, int32_t bin) {
  return bin < args.num_experts ? args.counts + bin : args.out_of_range;
}

}  // namespace eplb::cuda
