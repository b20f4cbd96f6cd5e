// eplb_echo_options_init and eplb_plan_echo.
#include <algorithm>
#include <cstdint>
#include <span>

#include "absl/strings/str_cat.h"

#include "client/c/client_handle.h"
#include "client/c/eplb_plan.h"
#include "client/c/plan.h"
#include "placement/echo/echo_plan.h"

namespace eplb::c {
namespace {

eplb_echo_options DefaultEchoOptions() {
  const EchoOptions defaults;
  eplb_echo_options options = {};
  options.struct_size = sizeof(options);
  options.tolerance = defaults.tolerance;
  options.spare_slots = defaults.spare_slots;
  options.num_domains = defaults.num_domains;
  return options;
}

// errors: InvalidArgument naming the field.
absl::Status CheckArrays(const eplb_echo& echo, const EchoPlan& plan) {
  if (echo.home_tokens == nullptr || echo.source == nullptr || echo.spare_tokens == nullptr) {
    return absl::InvalidArgumentError("echo: home_tokens, source or spare_tokens is NULL");
  }
  if (echo.num_slots != std::ssize(plan.home_tokens)) {
    return absl::InvalidArgumentError(absl::StrCat("echo.num_slots is ", echo.num_slots,
                                                   ", the homes have ", plan.home_tokens.size()));
  }
  if (echo.num_spares != std::ssize(plan.source)) {
    return absl::InvalidArgumentError(absl::StrCat("echo.num_spares is ", echo.num_spares,
                                                   ", the GPUs have ", plan.source.size()));
  }
  return absl::OkStatus();
}

absl::Status PlanEcho(const eplb_plan* homes, const eplb_echo_options* given, LayerId layer,
                      std::span<const int64_t> counts, eplb_echo* result) {
  if (homes == nullptr) return absl::InvalidArgumentError("homes is NULL");
  if (counts.data() == nullptr) return absl::InvalidArgumentError("counts is NULL");
  EPLB_ASSIGN_OR_RETURN(const eplb_echo_options options,
                        ReadStruct("options", given, DefaultEchoOptions()));
  EPLB_ASSIGN_OR_RETURN(eplb_echo echo, ReadStruct<eplb_echo>("echo", result));
  EPLB_ASSIGN_OR_RETURN(EchoPlanner planner,
                        EchoPlanner::Make(homes->placement, {.spare_slots = options.spare_slots,
                                                             .tolerance = options.tolerance,
                                                             .num_domains = options.num_domains}));
  EchoPlan plan;
  EPLB_RETURN_IF_ERROR(planner.Plan(layer, counts, plan));
  EPLB_RETURN_IF_ERROR(CheckArrays(echo, plan));
  std::copy(plan.home_tokens.begin(), plan.home_tokens.end(), echo.home_tokens);
  std::copy(plan.source.begin(), plan.source.end(), echo.source);
  std::copy(plan.spare_tokens.begin(), plan.spare_tokens.end(), echo.spare_tokens);
  echo.before = plan.peak.before;
  echo.peak = plan.peak.peak;
  echo.bound = plan.peak.bound;
  echo.num_replicas = plan.peak.num_replicas;
  echo.bound_domain = plan.peak.bound_domain;
  FillStruct(echo, result);
  return absl::OkStatus();
}

}  // namespace
}  // namespace eplb::c

extern "C" {

int32_t eplb_echo_options_init(eplb_echo_options* options, size_t struct_size) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    if (options == nullptr) return absl::InvalidArgumentError("options is NULL");
    EPLB_RETURN_IF_ERROR(eplb::c::CheckStructSize<eplb_echo_options>("options", struct_size));
    options->struct_size = struct_size;
    eplb::c::FillStruct(eplb::c::DefaultEchoOptions(), options);
    return absl::OkStatus();
  });
}

int32_t eplb_plan_echo(const eplb_plan* homes, const eplb_echo_options* options, int32_t layer,
                       const int64_t* counts, int32_t num_experts, eplb_echo* echo) noexcept {
  return eplb::c::CatchAll([&]() -> absl::Status {
    const auto experts = static_cast<size_t>(std::max(0, num_experts));
    return eplb::c::PlanEcho(homes, options, eplb::LayerId{layer}, {counts, experts}, echo);
  });
}

}  // extern "C"
