// Client::Split, PrepareSplit, CountFor, RouteFrom and CheckCounts.
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "client/client_impl.h"
#include "client/options.h"
#include "client/start.h"
#include "cuda/checksum.h"

namespace eplb {
namespace {

constexpr char kCannot[] = "error";

std::string Sum(std::span<const int64_t> counts) {
  uint64_t sum = 0;  // a count that is out of range is refused as such; here it must not overflow
  for (const int64_t count : counts) sum += static_cast<uint64_t>(count);
  return absl::StrCat(sum);
}

}  // namespace

absl::StatusOr<SplitFigures> Client::Impl::Split(int32_t layer, const BatchCounts& counts,
                                                 std::span<int64_t> quotas,
                                                 std::span<int64_t> own) {
  EPLB_RETURN_IF_ERROR(CheckHeld("a split", layer));
  return shown_.splits().Split(LayerId{layer}, counts,
                               {.self = setup_.gpu(), .quotas = quotas, .own = own});
}

absl::Status Client::Impl::PrepareSplit(const SplitSetup& setup) {
  EPLB_RETURN_IF_ERROR(ended_);
  return shown_.PrepareSplits(setup, SplitOf(setup_.options) == SplitMode::kBatch);
}

absl::Status Client::Impl::CountFor(int32_t layer, const cuda::CountArgs& choices, int64_t* row,
                                    void* stream) {
  EPLB_ASSIGN_OR_RETURN(const SplitCall call, shown_.BeginSplitCall("count_for"));
  EPLB_RETURN_IF_ERROR(CheckHeld("count_for", layer));
  EPLB_RETURN_IF_ERROR(call.splits->arrays.Check("choices.expert_ids", choices.expert_ids));
  EPLB_RETURN_IF_ERROR(call.splits->arrays.Check("choices.is_padding", choices.is_padding));
  EPLB_RETURN_IF_ERROR(call.splits->arrays.Check("choices.counters", choices.counts));
  EPLB_RETURN_IF_ERROR(call.splits->arrays.Check("row", row));
  return call.splits->loop->CountFor(layer, choices, row, stream);
}

absl::Status Client::Impl::RouteFrom(int32_t layer, const int64_t* gathered, void* slots,
                                     void* stream) {
  EPLB_ASSIGN_OR_RETURN(const SplitCall call, shown_.BeginSplitCall("route_from"));
  EPLB_RETURN_IF_ERROR(call.splits->arrays.Check("gathered", gathered));
  EPLB_RETURN_IF_ERROR(call.splits->arrays.Check("slots", slots));
  return call.splits->loop->RouteFrom(layer, gathered, slots, stream);
}

std::string Client::Impl::WrongCounts(int32_t layer, std::span<const int64_t> counts) {
  const auto experts = static_cast<size_t>(setup_.topology.num_experts());
  const auto gpus = static_cast<size_t>(setup_.topology.num_gpus());
  const bool by_gpu = counts.size() != experts;
  if (by_gpu && counts.size() != experts * gpus) {
    std::string wrong =
        absl::StrCat("layer ", layer, ": ", counts.size(), " counts, expected ", experts);
    if (gpus > 1) absl::StrAppend(&wrong, " or ", gpus, " times as many");
    return wrong;
  }
  BatchCounts batch;
  (by_gpu ? batch.by_gpu : batch.totals) = counts;
  return std::string(shown_.splits().Check(LayerId{layer}, batch).message());
}

absl::Status Client::Impl::CheckCounts(int32_t layer, std::span<const int64_t> counts) {
  if (setup_.disabled) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(ended_);
  const std::string wrong = WrongCounts(layer, counts);
  const SplitOptions options = shown_.splits().options();
  const StartRound round{
      .what = "check_counts",
      .extra = {
          {kCannot, wrong},
          {"layer", absl::StrCat(layer)},
          {"placement", running().digest.Hex()},
          {"split options", absl::StrCat("slack ", options.slack, ", speeds [",
                                         absl::StrJoin(options.gpu_speeds, ", "), "]")},
          {"tokens", absl::StrCat(Sum(counts), " in ", counts.size(), " counts")},
          {"counts", absl::StrCat("checksum ", cuda::ChecksumOnHost(std::as_bytes(counts)))}}};
  EPLB_ASSIGN_OR_RETURN(const std::vector<StartFields> said, setup_.Exchange(round));
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (said[rank].size() != round.extra.size()) {
      return FailedPrecondition("check_counts: rank ", rank, " sent something else");
    }
    const std::string& error = said[rank].front().second;
    if (error.empty()) continue;
    return FailedPrecondition("check_counts: rank ", rank, ": ", error);
  }
  for (int32_t ep_group = 0; ep_group < setup_.grid.num_ep_groups(); ++ep_group) {
    EPLB_RETURN_IF_ERROR(CompareFields("check_counts", setup_.grid.RanksOf(ep_group), said));
  }
  return absl::OkStatus();
}

}  // namespace eplb
