// Flags that several commands share, and how a command enters the table of main.cc.
#ifndef EPLB_CLIENT_CLI_FLAGS_H_
#define EPLB_CLIENT_CLI_FLAGS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/cli/formats/layer_numbers.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/query_client.h"
#include "client/cli/shape_options.h"
#include "client/cli/terminal.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace eplb::cli {

// Reads a duration above 0, at most `most`, as ParseNanoseconds does; a number without a unit
// counts seconds. errors: InvalidArgument naming `flag`.
absl::StatusOr<absl::Duration> ParseDuration(const std::string& flag, const std::string& text,
                                             absl::Duration most = absl::Hours(1));

// What the command line asks for; set when its subcommand was named. A command's file defines
// Add<Name>(root, command): its flags, and what runs it.
using Command = std::function<Output(const Terminal& terminal)>;

// A check of CLI11: empty for an integer >= 0, else what is expected.
std::string CheckNotNegative(const std::string& text);

// A flag whose value is a decimal integer: "010" is ten, "1e3" and what does not fit are refused.
CLI::Option* AddInteger(CLI::App& app, const char* name, int32_t& value, const std::string& help);
CLI::Option* AddInteger(CLI::App& app, const char* name, int64_t& value, const std::string& help);
CLI::Option* AddInteger(CLI::App& app, const char* name, std::optional<int32_t>& value,
                        const std::string& help);
CLI::Option* AddInteger(CLI::App& app, const char* name, std::optional<int64_t>& value,
                        const std::string& help);

// A flag whose value is a size in bytes, as ParseBytes reads it.
CLI::Option* AddBytes(CLI::App& app, const char* name, int64_t& value, const std::string& help);
CLI::Option* AddBytes(CLI::App& app, const char* name, std::optional<int64_t>& value,
                      const std::string& help);
// A flag whose value is a number or a percentage, as ParseFraction reads it.
CLI::Option* AddFraction(CLI::App& app, const char* name, double& value, const std::string& help);
CLI::Option* AddFraction(CLI::App& app, const char* name, std::optional<double>& value,
                         const std::string& help);

// -o table|json, and of some commands trace, for ui.perfetto.dev.
enum class Formats { kTableAndJson, kWithTrace };
void AddFormat(CLI::App& app, Format& format, Formats formats = Formats::kTableAndJson);
// One of some words.
void AddChoice(CLI::App& app, const char* name, std::string& value, const std::string& help,
               const std::vector<std::string>& words);
// --format, --first-layer and --layers: the system that wrote the load, and its rows to read.
void AddLoadReading(CLI::App& app, LoadReading& reading);
// Refuses these three without --load. REQUIRES: the command has them all.
void NeedLoad(CLI::App& app);
// --first-layer and --layers, of which a command line has at most one.
void AddLayerChoice(CLI::App& app, LayerChoice& choice, const std::string& first_help,
                    const std::string& list_help);
// The job's shape and the policy.
void AddShapeOptions(CLI::App& app, ShapeOptions& options);
// Prices of transfers and replicas.
void AddCostOptions(CLI::App& app, CostOptions& options);
// Where the daemon is, how long to wait, and -o. Ends --help with the exit codes of a command that
// asks a daemon, and with those that only some such commands have.
void AddQueryOptions(CLI::App& app, QueryOptions& options,
                     const std::set<ExitCode>& more_exit_codes = {},
                     Formats formats = Formats::kTableAndJson);
// --job: which one; needed only when the daemon has several, unless `help` says otherwise.
void AddJobOption(CLI::App& app, std::string& job,
                  const std::string& help = "The job [the only one]");
// --request-id: of a change.
void AddRequestIdOption(CLI::App& app, std::string& request_id);
// --limit: of a list.
void AddLimitOption(CLI::App& app, int32_t& limit);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_FLAGS_H_
