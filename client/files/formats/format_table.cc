#include "client/files/formats/format_table.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/files/formats/ascend_format.h"
#include "client/files/formats/deepseek_format.h"
#include "client/files/formats/eplb_format.h"
#include "client/files/formats/sglang_format.h"
#include "client/files/formats/trtllm_format.h"
#include "client/files/formats/vllm_format.h"
#include "proto/wire/json_value.h"

namespace eplb {
namespace {

bool Always(const WriteOptions& /*options*/) { return true; }
bool Never(const WriteOptions& /*options*/) { return false; }

constexpr PlacementFormat kFormats[] = {
    {.name = "eplb",
     .parse = &ParseEplbPlacement,
     .write = &WriteEplbPlacement,
     .holds_ranks = &Always,
     .holds_gpus = true,
     .holds_nodes_and_groups = true,
     .holds_unequal_gpus = true,
     .holds_unusable_slots = true,
     .holds_shares = true},
    {.name = "deepseek",
     .parse = &ParseDeepseekPlacement,
     .write = &WriteDeepseekPlacement,
     .holds_ranks = &DeepseekHoldsRanks,
     .holds_unequal_gpus = true,
     .holds_unusable_slots = true},
    {.name = "sglang",
     .parse = &ParseSglangPlacement,
     .write = &WriteSglangPlacement,
     .holds_ranks = &Never,
     .counts_model_layers = true},
    {.name = "trtllm",
     .parse = &ParseTrtllmPlacement,
     .write = &WriteTrtllmPlacement,
     .holds_ranks = &Never,
     .holds_layer_numbers = true},
    {.name = "vllm",
     .parse = &ParseVllmPlacement,
     .write = &WriteVllmPlacement,
     .holds_ranks = &Never},
    {.name = "ascend",
     .parse = &ParseAscendPlacement,
     .write = &WriteAscendPlacement,
     .holds_ranks = &Never,
     .holds_gpus = true,
     .holds_unequal_gpus = true},
};

}  // namespace

std::span<const PlacementFormat> PlacementFormats() { return kFormats; }

absl::StatusOr<PlacementFormat> FindPlacementFormat(std::string_view name) {
  std::vector<std::string> names;
  for (const PlacementFormat& format : kFormats) {
    if (format.name == name) return format;
    names.emplace_back(format.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("placement format is ",
                                                 wire::JsonQuote(name.substr(0, 80)),
                                                 ", expected one of ", absl::StrJoin(names, ", ")));
}

}  // namespace eplb
