// Exact splits of batches: eplb_client_split, eplb_client_set_split_options,
// eplb_client_check_counts, eplb_client_prepare_split, eplb_client_split_figures, and
// eplb_splitter, which needs no client.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

#include "base/errors.h"
#include "client/batch_splits.h"
#include "client/c/client_handle.h"
#include "client/c/eplb.h"
#include "client/c/eplb_plan.h"
#include "client/c/plan.h"

// The struct of the ABI is in no namespace.
// NOLINTNEXTLINE(readability-identifier-naming)
struct eplb_splitter {
  explicit eplb_splitter(std::shared_ptr<const eplb::Placement> placement)
      : splits(std::move(placement), /*version=*/0) {}

  eplb::BatchSplits splits;
};

namespace eplb::c {
namespace {

std::span<const int64_t> ArrayOf(const int64_t* first, int64_t size) {
  return first == nullptr ? std::span<const int64_t>()
                          : std::span(first, static_cast<size_t>(size));
}

// errors: InvalidArgument naming the field.
absl::StatusOr<BatchCounts> ReadBatch(const eplb_batch* pointer) {
  EPLB_ASSIGN_OR_RETURN(const eplb_batch given, ReadStruct("batch", pointer));
  for (const auto& [field, number, least] :
       {std::tuple{"num_experts", given.num_experts, 1},
        {"num_gpus", given.num_gpus, given.by_gpu == nullptr ? 0 : 1}}) {
    if (number >= least) continue;
    return InvalidInput("batch.", field, " is ", number, ", expected at least ", least);
  }
  if (given.by_gpu == nullptr && given.num_gpus != 0) {
    return InvalidInput("batch.num_gpus is ", given.num_gpus, ", expected 0 without by_gpu");
  }
  const int64_t experts = given.num_experts;
  return BatchCounts{.totals = ArrayOf(given.totals, experts),
                     .by_gpu = ArrayOf(given.by_gpu, experts * given.num_gpus),
                     .before = ArrayOf(given.before, experts),
                     .mine = ArrayOf(given.mine, experts)};
}

absl::StatusOr<SplitOptions> ReadSplitOptions(const eplb_split_options* pointer) {
  EPLB_ASSIGN_OR_RETURN(const eplb_split_options given, ReadStruct("options", pointer));
  if (given.reserved != 0) return InvalidInput("options.reserved is not 0");
  SplitOptions options{.slack = given.slack};
  if (given.gpu_speeds == nullptr) {
    if (given.num_gpus == 0) return options;
    return InvalidInput("options.num_gpus is ", given.num_gpus, ", expected 0 without gpu_speeds");
  }
  if (given.num_gpus < 1) {
    return InvalidInput("options.num_gpus is ", given.num_gpus, ", expected at least 1");
  }
  options.gpu_speeds.assign(given.gpu_speeds, given.gpu_speeds + given.num_gpus);
  return options;
}

// split: (counts, quotas, own) -> StatusOr<SplitFigures>, which has written both arrays if it is
// OK.
template <class Split>
absl::Status RunSplit(const eplb_batch* batch, eplb_split* result, Split&& split) {
  EPLB_ASSIGN_OR_RETURN(const BatchCounts counts, ReadBatch(batch));
  EPLB_ASSIGN_OR_RETURN(eplb_split filled, ReadStruct<eplb_split>("split", result));
  EPLB_RETURN_IF_ERROR(CheckNotNull("split.quotas", filled.quotas));
  if (filled.num_slots < 1) {
    return InvalidInput("split.num_slots is ", filled.num_slots, ", expected at least 1");
  }
  const auto slots = static_cast<size_t>(filled.num_slots);
  const std::span<int64_t> own =
      filled.own == nullptr ? std::span<int64_t>() : std::span(filled.own, slots);
  EPLB_ASSIGN_OR_RETURN(const SplitFigures figures,
                        split(counts, std::span(filled.quotas, slots), own));
  filled.num_tight_gpus = static_cast<int32_t>(figures.tight_gpus.size());
  filled.version = figures.version;
  filled.peak = figures.peak;
  filled.mean = figures.mean;
  filled.balancedness = figures.balancedness.value_or(kNoFigure);
  filled.equal_peak = figures.equal_peak;
  if (filled.tight_gpus != nullptr) {
    std::copy(figures.tight_gpus.begin(), figures.tight_gpus.end(), filled.tight_gpus);
  }
  FillStruct(filled, result);
  return absl::OkStatus();
}

}  // namespace
}  // namespace eplb::c

extern "C" {

int32_t eplb_client_split(eplb_client* client, int32_t layer, const eplb_batch* batch,
                          eplb_split* split) noexcept {
  return eplb::c::Read(client, "split", [&](eplb::Client& connected) {
    return eplb::c::RunSplit(batch, split, [&](const auto& counts, auto quotas, auto own) {
      return connected.Split(layer, counts, quotas, own);
    });
  });
}

int32_t eplb_client_set_split_options(eplb_client* client,
                                      const eplb_split_options* options) noexcept {
  return eplb::c::Read(client, "set_split_options", [&](eplb::Client& connected) -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const eplb::SplitOptions read, eplb::c::ReadSplitOptions(options));
    return connected.SetSplitOptions(read);
  });
}

int32_t eplb_client_prepare_split(eplb_client* client, const eplb_split_setup* setup) noexcept {
  return eplb::c::Act(client, "prepare_split", [&](eplb::Client& connected) -> absl::Status {
    EPLB_ASSIGN_OR_RETURN(const eplb_split_setup given, eplb::c::ReadStruct("setup", setup));
    if (given.split_on_gpu != 0 && given.split_on_gpu != 1) {
      return eplb::InvalidInput("setup.split_on_gpu is ", given.split_on_gpu, ", expected 0 or 1");
    }
    eplb::SplitSetup read{.max_tokens = given.max_tokens,
                          .top_k = given.top_k,
                          .split_on_gpu = given.split_on_gpu != 0};
    if (std::isnan(given.deadline_s)) return eplb::InvalidInput("setup.deadline_s is nan");
    if (given.deadline_s != 0) read.deadline = absl::Seconds(given.deadline_s);
    return connected.PrepareSplit(read);
  });
}

int32_t eplb_client_split_figures(const eplb_client* client, eplb_split_figures* figures) noexcept {
  return eplb::c::Read(client, "split_figures", [&](const eplb::Client& connected) -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::CheckFillable("figures", figures));
    const eplb::SplitLoopFigures found = connected.split_figures();
    eplb::c::FillStruct({.batches = found.batches,
                         .late = found.late,
                         .refused = found.refused,
                         .version = found.newest.version,
                         .peak = found.newest.peak,
                         .mean = found.newest.mean,
                         .balancedness = found.newest.balancedness.value_or(eplb::c::kNoFigure),
                         .equal_peak = found.newest.equal_peak,
                         .drawn = found.drawn},
                        figures);
    return absl::OkStatus();
  });
}

int32_t eplb_client_check_counts(eplb_client* client, int32_t layer, const int64_t* counts,
                                 size_t num_counts) noexcept {
  return eplb::c::Act(client, "check_counts", [&](eplb::Client& connected) -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::CheckNotNull("counts", counts));
    return connected.CheckCounts(layer, {counts, num_counts});
  });
}

int32_t eplb_splitter_create(const eplb_plan* plan, const eplb_split_options* options,
                             eplb_splitter** splitter) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::CheckNotNull("splitter", splitter));
    *splitter = nullptr;
    EPLB_RETURN_IF_ERROR(eplb::c::CheckNotNull("plan", plan));
    eplb::SplitOptions read;
    if (options != nullptr) {
      EPLB_ASSIGN_OR_RETURN(read, eplb::c::ReadSplitOptions(options));
    }
    auto made =
        std::make_unique<eplb_splitter>(std::make_shared<const eplb::Placement>(plan->placement));
    EPLB_RETURN_IF_ERROR(made->splits.SetOptions(read));
    *splitter = made.release();
    return absl::OkStatus();
  });
}

int32_t eplb_splitter_split(eplb_splitter* splitter, int32_t layer, const eplb_batch* batch,
                            int32_t gpu, eplb_split* split) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    EPLB_RETURN_IF_ERROR(eplb::c::CheckNotNull("splitter", splitter));
    return eplb::c::RunSplit(batch, split, [&](const auto& counts, auto quotas, auto own) {
      return splitter->splits.Split(eplb::LayerId{layer}, counts,
                                    {.self = eplb::GpuId{gpu}, .quotas = quotas, .own = own});
    });
  });
}

void eplb_splitter_destroy(eplb_splitter* splitter) noexcept { delete splitter; }

}  // extern "C"
