// `eplbctl convert`: a placement file of one system becomes one of another.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/formats/conversion.h"
#include "client/cli/formats/format_table.h"

namespace eplb::cli {

namespace {

// Reads IN, writes OUT, and reports on stderr what was lost or assumed; nothing on stdout. Exit 2
// for unusable files and flags, with OUT unchanged; 1 if OUT cannot be written.
Output RunConvert(const ConversionOptions& options) {
  EPLB_ASSIGN_OR_RETURN(const Conversion conversion, AsUsage(ConvertPlacementFile(options)));
  EPLB_RETURN_IF_ERROR(WriteOutput(options.out, conversion.bytes));
  const std::string notes = absl::StrJoin(conversion.notes, "; ");
  return {kOk, "", notes.empty() ? "" : absl::StrCat("note: ", options.out, ": ", notes)};
}

}  // namespace

void AddConvert(const Flags& root) {
  auto [flags, options] = AddCommand<ConversionOptions>(
      root, "convert", "Convert a placement file of another system, or back", &RunConvert);
  std::vector<std::string> formats;
  for (const PlacementFormat& format : PlacementFormats()) formats.emplace_back(format.name);
  flags.Word("--from", formats, options.from, "Format of IN").Required();
  flags.Word("--to", formats, options.to, "Format of OUT").Required();
  flags.Text("in,--in", "IN", options.in, "File to read").Required();
  flags
      .Text("out,--out", "OUT", options.out,
            "File to write; .npy, .npz, .json or .csv for deepseek")
      .Required();
  ShapeNumbers& given = options.flags;
  AddInteger(flags, "--gpus", "G", given.num_gpus, "Number of GPUs, if IN has none");
  AddInteger(flags, "--nodes", "N", given.num_nodes, "Number of NVLink domains, if IN has none");
  AddInteger(flags, "--groups", "K", given.num_groups,
             "Number of the router's expert groups, if IN has none");
  AddLayerChoice(
      flags, given.layers,
      "The model's number of the first MoE layer, if dense layers precede it (sglang, trtllm)",
      "The model's numbers of the MoE layers, such as 3-60 or 1,3,5; selects layers if IN has "
      "numbers");
  flags.SetFooter(
      "Examples:\n"
      "  eplbctl convert --from sglang --to eplb location.json now.json --gpus 16 \\\n"
      "      --first-layer 3\n"
      "  eplbctl convert --from eplb --to trtllm next.json out.yaml --first-layer 3\n"
      "  eplbctl convert --from eplb --to trtllm next.json out.yaml --layers 1:47:2\n"
      "vllm is the start map of an open pull request of vLLM; vLLM 0.33.0 reads no\n"
      "start map.\n"
      "Exit codes: 0 written, 1 error, such as OUT not written, 2 wrong flag or\n"
      "  unusable input.");
}

}  // namespace eplb::cli
