// eplbctl. A command is a file of its own and a row of the table at the end: its flags, and what
// runs it.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"

#include "client/cli/convert.h"
#include "client/cli/get.h"
#include "client/cli/lint.h"
#include "client/cli/output.h"
#include "client/cli/plan.h"
#include "client/cli/replay.h"
#include "client/cli/report.h"
#include "client/cli/status.h"
#include "client/cli/sweep.h"
#include "client/cli/terminal.h"
#include "client/cli/text.h"
#include "client/files/load_file.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

// What the command line asks for; set when its subcommand was named.
using Command = std::function<Output(const Terminal& terminal)>;

void AddFormat(CLI::App& app, Format& format) {
  app.add_option_function<std::string>(
         "-o,--output",
         [&format](const std::string& name) {
           format = name == "json" ? Format::kJson : Format::kTable;
         },
         "What to print [table]")
      ->check(CLI::IsMember({"table", "json"}).description(""))
      ->type_name("table|json");
}

// One of some words.
void AddChoice(CLI::App& app, const char* name, std::string& value, const std::string& help,
               const std::vector<std::string>& words) {
  app.add_option(name, value, help)
      ->check(CLI::IsMember(words).description(""))
      ->type_name(absl::StrJoin(words, "|"));
}

void AddLoadFormat(CLI::App& app, std::string& format) {
  AddChoice(app, "--format", format, "Whose load it is, when its content does not tell",
            LoadFormatNames());
}

void AddPolicyOptions(CLI::App& app, PlanOptions& options) {
  app.add_option("--policy", options.policy, "How to decide [" + options.policy + "]")
      ->type_name("NAME");
  AddChoice(app, "--tie-break", options.tie_break, "Order of equal loads [stable]",
            {"stable", "compat"});
  app.add_option("--hierarchy", options.hierarchy,
                 "Keep expert groups on their node: by default when groups % nodes == 0")
      ->check(CLI::IsMember({"strict", "soft", "none"}).description(""))
      ->type_name("strict|soft|none");
  AddChoice(app, "--effort", options.effort, "Bound of a search [default]",
            {"fast", "default", "thorough"});
  AddChoice(app, "--split", options.split, "Tokens among replicas [equal]", {"equal", "optimal"});
  app.add_option("--gpu-speed", options.gpu_speed, "Relative speed of each GPU")
      ->type_name("1,0.5,..");
  app.add_option("--unusable-gpus", options.unusable_gpus, "GPUs that hold nothing")
      ->type_name("3,7,..");
  app.add_option("--max-moves-per-gpu", options.max_moves_per_gpu, "Transfers a GPU and layer")
      ->type_name("M");
  app.add_flag("--allow-duplicates", options.allow_duplicates,
               "Let replicas of an expert share a GPU");
}

void AddPlan(CLI::App& root, Command& command) {
  const auto options = std::make_shared<PlanOptions>();
  CLI::App& app = *root.add_subcommand("plan", "Compute a placement from a load file, offline");
  app.add_option("--load", options->load,
                 "JSON, JSON lines of windows, .npy, .npz, CSV, or what other systems record")
      ->required()
      ->type_name("FILE");
  AddLoadFormat(app, options->load_format);
  app.add_option("--gpus", options->gpus, "GPUs of the expert-parallel group")
      ->required()
      ->type_name("G");
  app.add_option("--nodes", options->nodes, "NVLink domains they are on [1]")->type_name("N");
  app.add_option("--groups", options->groups, "The router's expert groups [1]")->type_name("K");
  app.add_option("--slots", options->slots, "Slots of a layer over all GPUs")->type_name("S");
  app.add_option("--redundant", options->redundant, "Instead: slots beyond one per expert")
      ->type_name("R");
  app.add_option("--previous", options->previous, "Placement in force, to count moves against")
      ->type_name("FILE");
  app.add_option("--window", options->window, "How windows become one load [sum]")
      ->type_name("sum|last|ema:A");
  app.add_option("--out", options->out, "Write the placement here")->type_name("FILE");
  AddFormat(app, options->format);
  AddPolicyOptions(app, *options);
  app.footer(
      "Examples:\n"
      "  eplbctl plan --load load.json --gpus 8 --redundant 8\n"
      "  eplbctl plan --load trace.jsonl --window ema:0.9 --gpus 32 --nodes 4 --groups 8 \\\n"
      "      --slots 288 --previous now.json --out next.json -o json\n"
      "Exit codes: 0 planned, 1 --out not written, 2 wrong flag or unusable input.");
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunPlan(*options, terminal); };
  });
}

void AddLint(CLI::App& root, Command& command) {
  const auto options = std::make_shared<LintOptions>();
  CLI::App& app = *root.add_subcommand("lint", "Say every rule that a placement file breaks");
  app.add_option("--placement", options->placement, "The placement")->required()->type_name("FILE");
  app.add_option("--load", options->load, "A load whose layers and experts must be the same")
      ->type_name("FILE");
  AddLoadFormat(app, options->load_format);
  app.add_option("--against", options->against, "A placement whose shape must be the same")
      ->type_name("FILE");
  app.add_flag("--strict", options->strict, "Two replicas of an expert on one GPU break a rule");
  app.footer(
      "Example:\n"
      "  eplbctl lint --placement next.json --against now.json --strict\n"
      "Exit codes: 0 no rule is broken, 8 some are, 2 a file cannot be read.");
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunLint(*options); };
  });
}

void AddConvert(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ConversionOptions>();
  CLI::App& app =
      *root.add_subcommand("convert", "Turn another system's placement file into ours, or back");
  AddChoice(app, "--from", options->from, "What IN is", ConvertFormatNames());
  AddChoice(app, "--to", options->to, "What OUT becomes", ConvertFormatNames());
  app.get_option("--from")->required();
  app.get_option("--to")->required();
  app.add_option("in", options->in, "Read this")->required()->type_name("IN");
  app.add_option("out", options->out, "Write this; .npy, .npz, .json or .csv for deepseek")
      ->required()
      ->type_name("OUT");
  FrameNumbers& flags = options->flags;
  app.add_option("--gpus", flags.num_gpus, "GPUs, when IN does not say")->type_name("G");
  app.add_option("--nodes", flags.num_nodes, "NVLink domains, when IN does not say")
      ->type_name("N");
  app.add_option("--groups", flags.num_groups, "The router's expert groups, when IN does not say")
      ->type_name("K");
  app.add_option("--first-layer", flags.first_layer,
                 "The model's number of the first MoE layer, for trtllm")
      ->type_name("L");
  app.footer(
      "Examples:\n"
      "  eplbctl convert --from sglang --to eplb location.json now.json --gpus 16 --nodes 2\n"
      "  eplbctl convert --from eplb --to trtllm next.json balancer.yaml --first-layer 3\n"
      "Exit codes: 0 written, 1 OUT not written, 2 wrong flag or unusable input.");
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunConvert(*options); };
  });
}

void AddQueryOptions(CLI::App& app, QueryOptions& options) {
  app.add_option("--endpoint", options.endpoint,
                 "The daemon [EPLB_ENDPOINT, config file, unix socket, 127.0.0.1:29610]")
      ->type_name("HOST:PORT|unix:PATH");
  app.add_option("--timeout", options.timeout, "How long to wait [5s]")->type_name("DURATION");
  AddFormat(app, options.format);
  app.footer("Exit codes: 0 ok, 2 wrong flag, 3 unreachable, 4 denied, 5 not found, 7 timeout.");
}

void AddStatus(CLI::App& root, Command& command) {
  const auto options = std::make_shared<QueryOptions>();
  CLI::App& app = *root.add_subcommand("status", "The daemon and its jobs");
  AddQueryOptions(app, *options);
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunStatus(*options, terminal); };
  });
}

void AddGet(CLI::App& root, Command& command) {
  CLI::App& app = *root.add_subcommand("get", "One thing of the daemon: jobs, placement");
  app.require_subcommand(1);
  const auto jobs = std::make_shared<QueryOptions>();
  CLI::App& jobs_app = *app.add_subcommand("jobs", "Jobs and their shapes");
  AddQueryOptions(jobs_app, *jobs);
  jobs_app.callback([jobs, &command] {
    command = [jobs](const Terminal& terminal) { return RunGetJobs(*jobs, terminal); };
  });
  const auto placement = std::make_shared<GetPlacementOptions>();
  CLI::App& placement_app = *app.add_subcommand("placement", "The placement in force of a job");
  placement_app.add_option("--job", placement->job, "The job")->required()->type_name("NAME");
  placement_app.add_option("--layer", placement->layer, "Layer that the table shows [0]")
      ->type_name("L");
  placement_app.add_option("--out", placement->out, "Write the placement here")->type_name("FILE");
  AddQueryOptions(placement_app, placement->query);
  placement_app.callback([placement, &command] {
    command = [placement](const Terminal& terminal) {
      return RunGetPlacement(*placement, terminal);
    };
  });
}

void AddReport(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App& app =
      *root.add_subcommand("report", "Check and sum up what a run left in its log directory");
  app.add_option("directory", options->directory,
                 "What eplb-trainer --log-dir and --report-json wrote")
      ->required()
      ->type_name("DIR");
  app.add_option("--window-steps", options->window_steps,
                 "Steps planned at once in the upper line [50]")
      ->type_name("N");
  app.add_option("--min-rebalances", options->min_rebalances, "Fewer are a problem [0]")
      ->type_name("N");
  app.add_option("--min-gain", options->min_gain,
                 "Less balancedness gained over the static layout is a problem")
      ->type_name("X");
  app.add_option("--out", options->out, "Write the JSON form here")->type_name("FILE");
  AddFormat(app, options->format);
  app.footer(
      "Example:\n"
      "  eplbctl report build/demo --out report.json\n"
      "Exit codes: 0 everything holds, 8 something does not, 2 not a run, 1 --out not written.");
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunReportCommand(*options, terminal); };
  });
}

void AddFrameOptions(CLI::App& app, FrameOptions& options) {
  app.add_option("--gpus", options.gpus, "GPUs of the expert-parallel group")
      ->required()
      ->type_name("G");
  app.add_option("--nodes", options.nodes, "NVLink domains they are on [1]")->type_name("N");
  app.add_option("--groups", options.groups, "The router's expert groups [1]")->type_name("K");
  app.add_option("--policy", options.policy, "How to decide [" + options.policy + "]")
      ->type_name("NAME");
  AddChoice(app, "--tie-break", options.tie_break, "Order of equal loads [stable]",
            {"stable", "compat"});
  app.add_option("--hierarchy", options.hierarchy,
                 "Keep expert groups on their node: by default when groups % nodes == 0")
      ->check(CLI::IsMember({"strict", "soft", "none"}).description(""))
      ->type_name("strict|soft|none");
  AddChoice(app, "--effort", options.effort, "Bound of a search [default]",
            {"fast", "default", "thorough"});
  app.add_flag("--allow-duplicates", options.allow_duplicates,
               "Let replicas of an expert share a GPU");
  app.add_option("--max-moves-per-gpu", options.max_moves_per_gpu, "Transfers a GPU and layer")
      ->type_name("M");
}

void AddCostOptions(CLI::App& app, CostOptions& options) {
  app.add_option("--expert-bytes", options.expert_bytes,
                 "Bytes that a transfer moves [" + std::to_string(options.expert_bytes) + "]")
      ->type_name("B");
  app.add_option("--link-gbps", options.link_gbps,
                 "GB/s of a GPU inside a node and between nodes [" + options.link_gbps + "]")
      ->type_name("INTRA,INTER");
  app.add_option("--token-ns", options.token_ns,
                 "Time of a token on the fullest GPU [176, with --training 528]")
      ->type_name("T");
  app.add_flag("--training", options.training,
               "A replica costs a broadcast of weights and a sum of gradients each step");
  app.add_option("--weight-bytes", options.weight_bytes, "Of --training [--expert-bytes]")
      ->type_name("B");
  app.add_option("--gradient-bytes", options.gradient_bytes, "Of --training [2 * weights: fp32]")
      ->type_name("B");
}

void AddReplay(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ReplayCommandOptions>();
  CLI::App& app =
      *root.add_subcommand("replay", "Decide on a recorded trace as the daemon would have");
  app.add_option("--trace", options->trace, "JSON lines of windows, or .npy of three dimensions")
      ->required()
      ->type_name("FILE");
  app.add_option("--slots", options->slots, "Slots of a layer over all GPUs")
      ->required()
      ->type_name("S");
  AddFrameOptions(app, options->frame);
  app.add_option("--every", options->every, "Windows between decisions [1]")->type_name("W");
  app.add_option("--history", options->history, "Windows that a decision looks at [4]")
      ->type_name("H");
  app.add_option("--window", options->window, "How they become one load [sum]")
      ->type_name("sum|last|ema:A");
  app.add_option("--min-gain", options->min_gain, "Least fall of the predicted peak load [0.05]")
      ->type_name("X");
  app.add_option("--horizon-windows", options->horizon_windows,
                 "A placement is trusted no longer than this [as long as it was watched]")
      ->type_name("Z");
  AddCostOptions(app, options->costs);
  AddFormat(app, options->format);
  app.footer(
      "Examples:\n"
      "  eplbctl replay --trace trace.jsonl --gpus 8 --slots 64\n"
      "  eplbctl replay --trace trace.jsonl --gpus 32 --nodes 4 --slots 288 --every 4 \\\n"
      "      --expert-bytes 88080384 --link-gbps 450,50 --token-ns 176 -o json\n"
      "Exit codes: 0 replayed, 2 wrong flag or unusable input.");
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunReplay(*options, terminal); };
  });
}

void AddSweep(CLI::App& root, Command& command) {
  const auto options = std::make_shared<SweepOptions>();
  CLI::App& app = *root.add_subcommand("sweep", "Say how many redundant slots are worth it");
  app.add_option("--load", options->load, "JSON matrix, JSON lines of windows, or .npy")
      ->required()
      ->type_name("FILE");
  app.add_option("--slots", options->slots, "Slots of a layer over all GPUs, from A to B")
      ->required()
      ->type_name("A:B:STEP");
  AddFrameOptions(app, options->frame);
  app.add_option("--window", options->window, "How windows become one load [sum]")
      ->type_name("sum|last|ema:A");
  AddCostOptions(app, options->costs);
  AddFormat(app, options->format);
  app.footer(
      "Examples:\n"
      "  eplbctl sweep --load load.json --gpus 32 --slots 256:352:32\n"
      "  eplbctl sweep --load trace.jsonl --gpus 8 --slots 64:80:8 --training\n"
      "Exit codes: 0 computed, 2 wrong flag or unusable input.");
  app.callback([options, &command] {
    command = [options](const Terminal& terminal) { return RunSweep(*options, terminal); };
  });
}

constexpr void (*kCommands[])(CLI::App& root, Command& command) = {
    &AddPlan, &AddReplay, &AddSweep, &AddLint, &AddConvert, &AddStatus, &AddGet, &AddReport};

// The innermost subcommand that was named, e.g. "eplbctl get placement".
std::string NameOf(const CLI::App& app, const std::string& name) {
  const std::vector<CLI::App*> named = app.get_subcommands();
  if (named.empty()) return name;
  return NameOf(*named.front(), name + " " + named.front()->get_name());
}

// CLI11 calls an unknown command a missing one.
std::string Explain(const CLI::App& root, const CLI::ParseError& error) {
  const std::vector<std::string> rest = root.remaining(true);
  const std::string message = error.what();
  const bool about_commands = message.find("subcommand is required") != std::string::npos;
  return about_commands && !rest.empty() ? "unknown command \"" + rest.front() + "\"" : message;
}

int Print(const Output& output) {
  if (!output.message.empty()) {
    std::fprintf(stderr, "eplbctl: %s\n", Printable(output.message).c_str());
  }
  const size_t written = std::fwrite(output.out.data(), 1, output.out.size(), stdout);
  if (written == output.out.size() && std::fflush(stdout) == 0) return output.exit_code;
  std::perror("eplbctl: cannot write to stdout");
  return kError;
}

int Main(int argc, char** argv) {
  CLI::App root("Plans, checks and watches the placement of experts on GPUs.", "eplbctl");
  root.set_version_flag("--version", "eplbctl " EPLB_VERSION);
  root.require_subcommand(1);
  root.footer("`eplbctl COMMAND --help` tells a command's flags.");
  Command command;
  for (const auto add : kCommands) add(root, command);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return root.exit(error);  // --help, --version
    return Print(UsageFailure(absl::InvalidArgumentError(Explain(root, error) + " (see " +
                                                         NameOf(root, "eplbctl") + " --help)")));
  }
  return Print(command(DetectTerminal()));
}

}  // namespace
}  // namespace eplb::cli

int main(int argc, char** argv) {
  // gRPC logs on stderr, where one line is promised.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  // A file size limit shall fail a write, not kill the process with a file half written.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return eplb::cli::Main(argc, argv);
  } catch (const std::exception& error) {  // of a library, e.g. out of memory
    std::fprintf(stderr, "eplbctl: %s\n", error.what());
    return eplb::cli::kError;
  }
}
