#include "cuda/echo.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"

namespace eplb::cuda {
namespace {

constexpr int64_t kMaxEchoLayerBytes = int64_t{48} * 1024;

absl::Status CheckEchoShape(const EchoArgs& args) {
  if (args.num_layers < 0 || args.num_experts < 1 || args.num_gpus < 1 || args.spares_per_gpu < 1 ||
      args.num_slots < args.num_gpus) {
    return absl::InvalidArgumentError(absl::StrCat(
        "echo of ", args.num_layers, " layers, ", args.num_experts, " experts in ", args.num_slots,
        " slots of ", args.num_gpus, " GPUs with ", args.spares_per_gpu,
        " spare slots; expected >= 0, and >= 1 of each, and a slot for each GPU"));
  }
  if (args.gpus_per_domain < 1 || args.num_gpus % args.gpus_per_domain != 0) {
    return absl::InvalidArgumentError(absl::StrCat("echo in domains of ", args.gpus_per_domain,
                                                   " GPUs, expected a divisor of ", args.num_gpus));
  }
  if (args.tolerance < 0 || args.tolerance > kEchoToleranceUnit) {
    return absl::InvalidArgumentError(absl::StrCat("echo with a tolerance of ", args.tolerance,
                                                   ", expected 0..", kEchoToleranceUnit));
  }
  if (const int64_t bytes = EchoLayerBytes(args); bytes > kMaxEchoLayerBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("echo of ", args.num_slots, " slots of ", args.num_gpus, " GPUs needs ", bytes,
                     " bytes a layer, a block has ", kMaxEchoLayerBytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckEchoArgs(const EchoArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckEchoShape(args));
  if (args.num_layers == 0) return absl::OkStatus();
  for (const auto& [name, pointer] :
       {std::pair<const char*, const void*>{"first_slot", args.first_slot},
        {"slot_expert", args.slot_expert},
        {"slot_num_replicas", args.slot_num_replicas},
        {"slot_replica_rank", args.slot_replica_rank},
        {"counts", args.counts},
        {"home_tokens", args.home_tokens},
        {"source", args.source},
        {"spare_tokens", args.spare_tokens},
        {"peaks", args.peaks}}) {
    if (pointer != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("echo of ", args.num_layers, " layers needs ", name, ", it is null"));
  }
  return absl::OkStatus();
}

absl::Status EchoOnHost(const EchoArgs& args) {
  EPLB_RETURN_IF_ERROR(CheckEchoArgs(args));
  std::vector<int64_t> memory(static_cast<size_t>((EchoLayerBytes(args) + 7) / 8));
  for (int32_t layer = 0; layer < args.num_layers; ++layer) {
    EchoLayerWork<EchoThread>(args, layer, memory.data(), EchoThread()).Run();
  }
  return absl::OkStatus();
}

}  // namespace eplb::cuda
