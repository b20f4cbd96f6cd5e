#include "cuda/quota_route.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/count.h"

namespace eplb::cuda {
namespace {

template <class ExpertId>
void RouteChunks(const QuotaRouteArgs& args) {
  const int64_t num_chunks = NumChunks(args.choices);
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk)
    CountChunk<ExpertId>(args, chunk, SoleLane());
  for (int32_t expert = 0; expert < args.choices.num_experts; ++expert) AddUpChunks(args, expert);
  for (int64_t chunk = 0; chunk < num_chunks; ++chunk)
    RouteChunk<ExpertId>(args, chunk, SoleLane());
}

}  // namespace

int64_t QuotaRouteScratchBytes(const CountArgs& choices) {
  return NumChunks(choices) * choices.num_experts * int64_t{sizeof(int32_t)};
}

absl::Status CheckQuotaRouteArgs(const QuotaRouteArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckChoices(args.choices));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  if (args.first_slot == nullptr || args.replica_slot == nullptr || args.own == nullptr ||
      args.slots == nullptr || args.beyond == nullptr || args.chunk_counts == nullptr) {
    return InvalidInput("route by quota of ", args.choices.num_tokens,
                        " tokens needs first_slot, replica_slot, own, slots, beyond and "
                        "chunk_counts, one of them is null");
  }
  return absl::OkStatus();
}

absl::Status QuotaRouteOnHost(const QuotaRouteArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckQuotaRouteArgs(args));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  if (args.choices.id_type == ExpertIdType::kInt32) {
    RouteChunks<int32_t>(args);
  } else {
    RouteChunks<int64_t>(args);
  }
  return absl::OkStatus();
}

}  // namespace eplb::cuda
