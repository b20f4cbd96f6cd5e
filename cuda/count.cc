#include "cuda/count.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb::cuda {
namespace {

// A block's histogram has 32 bits a bin: this many choices cannot overflow it on any grid.
constexpr int64_t kMaxChoices = int64_t{1} << 31;
template <class ExpertId>
void CountAll(const CountArgs& args) {
  const TokenDivider divider = MakeTokenDivider(args.top_k);
  const ChoiceGrid grid = GridOfChoices(args);
  const auto num_experts = static_cast<size_t>(args.num_experts);
  std::vector<int32_t> counts(num_experts + 2);  // of a chunk
  for (uint32_t number = 0; number < static_cast<uint32_t>(grid.blocks); ++number) {
    std::ranges::fill(counts, 0);
    const Chunk chunk = ChunkAt(args, grid, number);
    for (uint32_t index = chunk.begin; index < chunk.end; ++index) {
      ++counts[static_cast<size_t>(BinOfChoice<ExpertId>(args, divider, index))];
    }
    for (size_t expert = 0; expert < num_experts; ++expert) args.counts[expert] += counts[expert];
    *args.out_of_range += counts[num_experts];
    if (args.chunk_counts == nullptr) continue;
    std::copy_n(counts.begin(), num_experts, args.chunk_counts + number * num_experts);
  }
}

}  // namespace

absl::Status CheckChoices(const CountArgs& args) {
  if (args.num_tokens < 0 || args.top_k < 1 || args.num_experts < 1) {
    return InvalidInput("count of ", args.num_tokens, " tokens x ", args.top_k, " choices over ",
                        args.num_experts, " experts; expected >= 0, >= 1 and >= 1");
  }
  if (args.num_tokens > kMaxChoices / args.top_k) {
    return InvalidInput("count of ", args.num_tokens, " tokens x ", args.top_k,
                        " choices is above ", kMaxChoices);
  }
  if (args.num_tokens > 0 && args.expert_ids == nullptr) {
    return InvalidInput("count of ", args.num_tokens, " tokens needs expert_ids, it is null");
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
