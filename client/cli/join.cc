// `eplbctl join`: loads and traces of any format, one after the other, become one file.

#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/flags.h"
#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/formats/load_window.h"
#include "proto/wire/message_json.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using Json = nlohmann::ordered_json;

struct JoinOptions {
  std::vector<std::string> files;  // the last is written
  LoadReading reading;
  std::optional<int64_t> first_step;
};

struct Joined {
  std::string bytes;
  std::vector<std::string> notes;  // about the files that were read
};

bool IsTraceOfRank(const std::string& path) {
  const absl::StatusOr<std::string> bytes = ReadRegularFile(path);
  return bytes.ok() && IsRouterTrace(*bytes);
}

// Rejects what would destroy a file or join ranks as if they were steps.
absl::Status CheckFiles(const JoinOptions& options) {
  const std::string& out = options.files.back();
  if (options.files.size() < 2) return InvalidInput("FILE is ", out, ", expected IN .. OUT");
  if (!absl::EndsWith(out, ".json") && !absl::EndsWith(out, ".jsonl")) {
    return InvalidInput("OUT is ", out, ", expected a name ending in .json or .jsonl");
  }
  if (IsTraceOfRank(out)) {
    return InvalidInput("OUT is ", out, ", a router trace: name the file to write at the end");
  }
  if (options.first_step.value_or(0) < 0) {
    return InvalidInput("--first-step is ", *options.first_step, ", expected at least 0");
  }
  for (const std::string& in : options.files) {
    if (options.files.size() > 2 && (HoldsRouterTraces(in) || IsTraceOfRank(in))) {
      return InvalidInput(in,
                          ": is a router trace, whose ranks are summed, not joined: "
                          "give the directory of all ranks alone");
    }
  }
  return absl::OkStatus();
}

// Numbers the windows one after the other, each as long as it is.
absl::Status Renumber(int64_t step, std::vector<LoadWindow>& windows) {
  constexpr int64_t kMaxStep = int64_t{1} << 62;
  for (LoadWindow& window : windows) {
    const int64_t more_steps = window.last_step - window.first_step;
    if (step > kMaxStep - more_steps) {
      return InvalidInput("the joined windows end after step ", kMaxStep, ", the largest");
    }
    window.first_step = step;
    window.last_step = step + more_steps;
    step = window.last_step + 1;
  }
  return absl::OkStatus();
}

template <class Matrix>
Json Rows(const Matrix& matrix) {
  Json rows = Json::array();
  for (const auto& row : matrix.rowwise()) rows.push_back(std::vector(row.begin(), row.end()));
  return rows;
}

Json Rows(const Load& load) {
  return load.is_counts() ? Rows(load.counts()) : Rows(load.ToDouble());
}

absl::StatusOr<std::string> Written(const std::string& out, std::span<const LoadWindow> windows) {
  std::string text;
  if (absl::EndsWith(out, ".json")) {
    EPLB_ASSIGN_OR_RETURN(const Load sum, CombineWindows(windows, WindowRule{}));
    return wire::DumpJson({{"format", "eplb.load.v1"}, {"load", Rows(sum)}}) + "\n";
  }
  for (const LoadWindow& window : windows) {
    const Json line = {{"first_step", window.first_step},
                       {"last_step", window.last_step},
                       {"load", Rows(window.load)}};
    absl::StrAppend(&text, wire::DumpJson(line), "\n");
  }
  return text;
}

absl::StatusOr<Joined> Join(const JoinOptions& options) {
  EPLB_RETURN_IF_ERROR(CheckFiles(options));
  const std::span<const std::string> sources(options.files.data(), options.files.size() - 1);
  Joined joined;
  std::vector<LoadWindow> windows;
  for (const std::string& in : sources) {
    EPLB_ASSIGN_OR_RETURN(LoadFile file, ReadLoadFile(in, options.reading));
    if (std::string note = NotesOn(in, file); !note.empty())
      joined.notes.push_back(std::move(note));
    const Load& load = file.windows.front().load;
    const Load& first = windows.empty() ? load : windows.front().load;
    if (load.num_layers() != first.num_layers() || load.num_experts() != first.num_experts()) {
      return InvalidInput(in, ": has ", load.num_layers(), " layers x ", load.num_experts(),
                          " experts, ", sources.front(), " has ", first.num_layers(), " x ",
                          first.num_experts());
    }
    std::ranges::move(file.windows, std::back_inserter(windows));
  }
  if (sources.size() > 1 || options.first_step) {
    EPLB_RETURN_IF_ERROR(Renumber(options.first_step.value_or(0), windows));
  }
  EPLB_ASSIGN_OR_RETURN(joined.bytes, Written(options.files.back(), windows));
  return joined;
}

// Exit 2 for unusable files and flags, with OUT unchanged; 1 if OUT cannot be written.
Output RunJoin(const JoinOptions& options) {
  const absl::StatusOr<Joined> joined = Join(options);
  if (!joined.ok()) return absl::InvalidArgumentError(joined.status().message());
  const absl::Status written = WriteFileAtomically(options.files.back(), joined->bytes);
  if (!written.ok()) return {kError, "", std::string(written.message())};
  return {kOk, "", absl::StrJoin(joined->notes, "; ")};
}

}  // namespace

void AddJoin(const Flags& root) {
  auto [flags, options] = AddCommand<JoinOptions>(
      root, "join", "Write loads and traces, one after the other, as one file", &RunJoin);
  flags
      .Texts("files", "FILE", options.files,
             "IN .. OUT: files to read in this order, and the file to write: .jsonl has every "
             "window, .json their sum")
      .Required();
  AddInteger(flags, "--first-step", "N", options.first_step,
             "Number of the first step [of one IN: its own; of several: 0]");
  AddLoadReading(flags, options.reading);
  flags.SetFooter(
      "Examples:\n"
      "  eplbctl join recorder_1.pt recorder_2.pt trace.jsonl --first-layer 3\n"
      "  eplbctl join router_traces load.json --experts 64\n"
      "Exit codes: 0 written, 1 error, such as OUT not written, 2 wrong flag or\n"
      "  unusable input.");
}

}  // namespace eplb::cli
