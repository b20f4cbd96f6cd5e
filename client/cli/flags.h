// Flags that several commands share.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/cli/command_tree.h"
#include "client/cli/formats/layer_numbers.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/query_client.h"
#include "client/cli/shape_options.h"

namespace eplb::cli {

// Reads a duration above 0, at most `most`, as ParseNanoseconds does; a number without a unit
// counts seconds. errors: InvalidArgument naming `flag`.
absl::StatusOr<absl::Duration> ParseDuration(const std::string& flag, const std::string& text,
                                             absl::Duration most = absl::Hours(1));

// Empty for an integer >= 0; otherwise what is wrong with `text`.
std::string CheckNotNegative(const std::string& text);

// A flag whose value is a decimal integer: "010" is ten; "1e3" and numbers that do not fit are
// refused. Value: int32_t, int64_t or an optional of one of them.
template <class Value>
Flags& AddInteger(Flags& flags, const char* name, const char* type, Value& value,
                  const std::string& help);
// AddInteger for integers >= 0.
template <class Value>
Flags& AddCount(Flags& flags, const char* name, const char* type, Value& value,
                const std::string& help) {
  return AddInteger(flags, name, type, value, help).Check(&CheckNotNegative);
}
// A flag whose value is a size in bytes, as ParseBytes reads it. Value: int64_t or its optional.
template <class Value>
Flags& AddBytes(Flags& flags, const char* name, Value& value, const std::string& help);
// A flag whose value is a number or a percentage, as ParseFraction reads it. Value: double or its
// optional.
template <class Value>
Flags& AddFraction(Flags& flags, const char* name, Value& value, const std::string& help);

// -o table|json, for some commands also trace, which ui.perfetto.dev shows.
enum class Formats { kTableAndJson, kWithTrace };
void AddFormat(Flags& flags, Format& format, Formats formats = Formats::kTableAndJson);
// Help of a --load that plans are made for.
inline constexpr char kLoadHelp[] =
    "JSON, JSON lines of windows, .npy, .npz, .pt, CSV, or what other systems record";
// --format, --first-layer, --layers and --experts: how a load is read.
void AddLoadReading(Flags& flags, LoadReading& reading);
// AddLoadReading where the command can do without --load, which is declared before.
void AddOptionalLoadReading(Flags& flags, LoadReading& reading);
// --first-layer and --layers, of which a command line has at most one.
void AddLayerChoice(Flags& flags, LayerChoice& choice, const std::string& first_help,
                    const std::string& list_help);
// Flags of the job's shape and of the policy.
void AddShapeOptions(Flags& flags, ShapeOptions& options);
// Prices of transfers and replicas.
void AddCostOptions(Flags& flags, CostOptions& options);
// --window: how the windows of a trace become one load.
Flags& AddWindow(Flags& flags, std::string& window);
// Flags that every command has that asks a daemon: its address, the deadline, and -o. Ends --help
// with the exit codes of such a command and with `more_exit_codes`.
void AddQueryOptions(Flags& flags, QueryOptions& options,
                     const std::set<ExitCode>& more_exit_codes = {},
                     Formats formats = Formats::kTableAndJson);
// --job, or its name by its place, after those that are declared before: needed only if the daemon
// has several jobs, unless `help` describes something else.
inline constexpr char kJobHelp[] = "Job to use [the only one]";
inline constexpr char kAllJobsHelp[] = "Show only this job [all]";
void AddJobOption(Flags& flags, std::string& job, const std::string& help = kJobHelp,
                  const char* name = "job,--job");
// --request-id: names a change.
void AddRequestIdOption(Flags& flags, std::string& request_id);
// --limit: length of a list.
void AddLimitOption(Flags& flags, int32_t& limit);

}  // namespace eplb::cli
