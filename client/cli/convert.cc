#include "client/cli/convert.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/files.h"
#include "base/status_macros.h"
#include "client/cli/formats/format_table.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
std::vector<std::string> ConvertFormatNames() {
  std::vector<std::string> names;
  for (const PlacementFormat& format : PlacementFormats()) names.emplace_back(format.name);
  return names;
}

Output RunConvert(const ConversionOptions& options) {
  const absl::StatusOr<Conversion> conversion = ConvertPlacementFile(options);
  if (!conversion.ok()) return UsageFailure(conversion.status());
  const absl::Status written = WriteFileAtomically(options.out, conversion->bytes);
  if (!written.ok()) return Failure(kError, written);
  Output output;
  if (!conversion->notes.empty()) {
    output.message =
        absl::StrCat("note: ", options.out, ": ", absl::StrJoin(conversion->notes, "; "));
  }
  return output;
}

void AddConvert(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ConversionOptions>();
  CLI::App& app =
      *root.add_subcommand("convert", "Convert a placement file of another system, or back");
  AddChoice(app, "--from", options->from, "What IN is", ConvertFormatNames());
  AddChoice(app, "--to", options->to, "What OUT becomes", ConvertFormatNames());
  app.get_option("--from")->required();
  app.get_option("--to")->required();
  app.add_option("in", options->in, "Read this")->required()->type_name("IN");
  app.add_option("out", options->out, "Write this; .npy, .npz, .json or .csv for deepseek")
      ->required()
      ->type_name("OUT");
  ShapeNumbers& flags = options->flags;
  AddInteger(app, "--gpus", flags.num_gpus, "GPUs, when IN has none")->type_name("G");
  AddInteger(app, "--nodes", flags.num_nodes, "NVLink domains, when IN has none")->type_name("N");
  AddInteger(app, "--groups", flags.num_groups, "The router's expert groups, when IN has none")
      ->type_name("K");
  AddLayerChoice(app, flags.layers,
                 "The model's number of the first MoE layer: dense layers before it, for sglang "
                 "and trtllm",
                 "The model's numbers of the MoE layers, such as 3-60 or 1,3,5; of IN that has "
                 "numbers only these");
  app.footer(
      "Examples:\n"
      "  eplbctl convert --from sglang --to eplb location.json now.json --gpus 16 --first-layer 3\n"
      "  eplbctl convert --from eplb --to trtllm next.json balancer.yaml --first-layer 3\n"
      "  eplbctl convert --from eplb --to trtllm next.json balancer.yaml --layers 1:47:2\n"
      "vllm is the start map of an open pull request of vLLM; vLLM 0.33.0 reads no start map.\n"
      "Exit codes: 0 written, 1 error, as OUT not written, 2 wrong flag or unusable input.");
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunConvert(*options); };
  });
}

}  // namespace eplb::cli
