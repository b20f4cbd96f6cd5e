#include "cuda/count.h"

#include <algorithm>

#include "base/errors.h"
#include "base/status_macros.h"

namespace eplb::cuda {
namespace {

// A block's histogram has 32 bits a bin: this many choices cannot overflow it on any grid.
constexpr int64_t kMaxChoices = int64_t{1} << 31;
constexpr int32_t kCountThreads = 512;
constexpr int32_t kCountBlocksPerMultiprocessor = 2;
// Shared memory of a block on every device by default.
constexpr int32_t kMaxSharedBytes = 48 * 1024;

template <class ExpertId>
void CountAll(const CountArgs& args) {
  const int64_t num_quads = NumQuads(args);
  for (int64_t quad = 0; quad < num_quads; ++quad) {
    for (const int32_t bin : BinsOfQuad<ExpertId>(args, quad).bins) {
      if (bin != kNoBin) ++*CountCell(args, bin);
    }
  }
}

// Returns the bytes of a block's histogram; 0 if not every device gives a block that much.
int32_t HistogramBytes(int32_t num_experts) {
  const int64_t bytes = (int64_t{num_experts} + 1) * static_cast<int64_t>(sizeof(uint32_t));
  return bytes <= kMaxSharedBytes ? static_cast<int32_t>(bytes) : 0;
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

CountGrid ChooseCountGrid(const CountArgs& args, int32_t num_multiprocessors) {
  const int64_t num_quads = NumQuads(args);
  if (num_quads == 0) return {};
  const int64_t wanted = (num_quads + kCountThreads - 1) / kCountThreads;
  const int64_t most = int64_t{std::max(1, num_multiprocessors)} * kCountBlocksPerMultiprocessor;
  return {.blocks = static_cast<int32_t>(std::min(wanted, most)),
          .threads = kCountThreads,
          .shared_bytes = args.counts == nullptr ? 0 : HistogramBytes(args.num_experts)};
}

}  // namespace eplb::cuda
