#include "cuda/count.h"

#include <algorithm>
#include <tuple>

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb::cuda {
namespace {

// A block's histogram has 32 bits a bin: this many choices cannot overflow it on any grid.
constexpr int64_t kMaxChoices = int64_t{1} << 31;
// By value: the compiler then keeps the fields in registers, although the loop writes memory.
template <class ExpertId>
void CountAll(const CountArgs args) {
  const TokenDivider divider = MakeTokenDivider(args.top_k);
  const ChoiceGrid grid = GridOfChoices(args);
  int32_t* chunk_counts = args.chunk_counts;
  for (uint32_t number = 0; number < static_cast<uint32_t>(grid.blocks); ++number) {
    const Chunk chunk = ChunkAt(args, grid, number);
    if (chunk_counts != nullptr) std::fill_n(chunk_counts, args.num_experts, 0);
    for (uint32_t index = chunk.begin; index < chunk.end; ++index) {
      const int32_t bin = BinOfChoice<ExpertId>(args, divider, index);
      if (bin > OutOfRangeBin(args)) continue;
      ++*CountCell(args, bin);
      if (chunk_counts != nullptr && bin < args.num_experts) ++chunk_counts[bin];
    }
    if (chunk_counts != nullptr) chunk_counts += args.num_experts;
  }
}

}  // namespace

absl::Status CheckChoices(const CountArgs& args) {
  for (const auto& [field, number, least] : {std::tuple{"num_tokens", args.num_tokens, 0},
                                             {"top_k", int64_t{args.top_k}, 1},
                                             {"num_experts", int64_t{args.num_experts}, 1}}) {
    if (number >= least) continue;
    return InvalidInput("choices.", field, " is ", number, ", expected at least ", least);
  }
  if (args.num_tokens > kMaxChoices / args.top_k) {
    return InvalidInput("count of ", args.num_tokens, " tokens x ", args.top_k,
                        " choices is above ", kMaxChoices);
  }
  if (args.num_tokens > 0 && args.expert_ids == nullptr) {
    return InvalidInput("choices.expert_ids is NULL");
  }
  return absl::OkStatus();
}

absl::Status CheckCountArgs(const CountArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckChoices(args));
  if (args.num_tokens > 0 && (args.counts == nullptr || args.out_of_range == nullptr)) {
    return InvalidInput("count of ", args.num_tokens,
                        " tokens needs counts and out_of_range, one of them is null");
  }
  if (args.chunk_counts != nullptr && HistogramBytes(args.num_experts) == 0) {
    return InvalidInput("count of chunks over ", args.num_experts, " experts, at most ",
                        kMaxSharedBytes / sizeof(uint32_t) - 2, " are possible");
  }
  return absl::OkStatus();
}

absl::Status CountOnHost(const CountArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckCountArgs(args));
  if (args.id_type == ExpertIdType::kInt32) {
    CountAll<int32_t>(args);
  } else {
    CountAll<int64_t>(args);
  }
  return absl::OkStatus();
}

ChoiceGrid GridOfChoices(const CountArgs& args) {
  const uint32_t chunk_choices = ChunkChoices(NumChoices(args));
  return {.blocks = static_cast<int32_t>(NumChunks(NumChoices(args))),
          .threads = std::min(static_cast<int32_t>(chunk_choices / kQuad), kMaxChoiceThreads),
          .chunk_choices = chunk_choices};
}

int64_t ChunkCountsBytes(const CountArgs& args) {
  return int64_t{NumChunks(NumChoices(args))} * args.num_experts * int64_t{sizeof(int32_t)};
}

int32_t HistogramBytes(int32_t num_experts) {
  const int64_t bytes = (int64_t{num_experts} + 2) * static_cast<int64_t>(sizeof(uint32_t));
  return bytes <= kMaxSharedBytes ? static_cast<int32_t>(bytes) : 0;
}

}  // namespace eplb::cuda
