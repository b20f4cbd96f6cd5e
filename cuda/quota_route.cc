#include "cuda/quota_route.h"

#include <algorithm>
#include <vector>

#include "base/errors.h"
#include "base/status_macros.h"
#include "cuda/count.h"

namespace eplb::cuda {
namespace {

constexpr int32_t kMaxQuotaWarps = kMaxChoiceThreads / 32;

template <class ExpertId>
void RouteAllByQuota(const QuotaRouteArgs& args) {
  const CountArgs& choices = args.choices;
  const auto list_of = [&args](int32_t expert) -> CandidateList {
    const int32_t first = args.first_slot[expert];
    return {first, args.first_slot[expert + 1] - first};
  };
  std::vector<uint32_t> limits(static_cast<size_t>(args.first_slot[choices.num_experts]));
  for (size_t i = 0; i < limits.size(); ++i) limits[i] = QuotaOf(args.own[args.replica_slot[i]]);
  for (int32_t expert = 0; expert < choices.num_experts; ++expert) {
    AddUpQuotas(list_of(expert), limits.data());
  }
  std::vector<uint32_t> next(static_cast<size_t>(choices.num_experts));
  const TokenDivider divider = MakeTokenDivider(choices.top_k);
  auto* const slots = static_cast<ExpertId*>(args.slots);
  for (uint32_t index = 0; index < NumChoices(choices); ++index) {
    const int32_t bin = BinOfChoice<ExpertId>(choices, divider, index);
    slots[index] = kNoSlot;
    if (bin >= choices.num_experts) continue;
    const CandidateList list = list_of(bin);
    const int32_t found = IndexOfPlace(list, limits.data(), next[static_cast<size_t>(bin)]++);
    if (found < list.first + list.count) {
      slots[index] = args.replica_slot[found];
    } else {
      ++*args.beyond;
    }
  }
}

}  // namespace

QuotaRouteGrid ChooseQuotaRouteGrid(int32_t num_experts, int32_t num_slots) {
  // Two arrays of bins and one of slots; the slots themselves in 16 bits; counters of each warp.
  const int64_t num_bins = int64_t{num_experts} + 2;
  const int64_t table_bytes = 8 * num_bins + 6 * (int64_t{num_slots} + 1);
  const int64_t warps =
      std::min<int64_t>(kMaxQuotaWarps, (kMaxSharedBytes - table_bytes) / (4 * num_bins));
  if (warps < 1) return {};
  return {static_cast<int32_t>(warps), static_cast<int32_t>(table_bytes + warps * 4 * num_bins)};
}

absl::Status CheckQuotaRouteArgs(const QuotaRouteArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckChoices(args.choices));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  if (args.first_slot == nullptr || args.replica_slot == nullptr || args.own == nullptr ||
      args.slots == nullptr || args.beyond == nullptr) {
    return InvalidInput("route by quota of ", args.choices.num_tokens,
                        " tokens needs first_slot, replica_slot, own, slots and beyond, one of "
                        "them is null");
  }
  if (args.num_slots < 1 ||
      ChooseQuotaRouteGrid(args.choices.num_experts, args.num_slots).warps == 0) {
    return InvalidInput("route by quota over ", args.choices.num_experts, " experts in ",
                        args.num_slots, " slots, expected 1 slot or more, and as many as ",
                        kMaxSharedBytes, " bytes of shared memory hold");
  }
  return absl::OkStatus();
}

absl::Status QuotaRouteOnHost(const QuotaRouteArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckQuotaRouteArgs(args));
  if (args.choices.num_tokens == 0) return absl::OkStatus();
  if (args.choices.id_type == ExpertIdType::kInt32) {
    RouteAllByQuota<int32_t>(args);
  } else {
    RouteAllByQuota<int64_t>(args);
  }
  return absl::OkStatus();
}

}  // namespace eplb::cuda
