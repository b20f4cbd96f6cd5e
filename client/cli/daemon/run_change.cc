#include "client/cli/daemon/run_change.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/text.h"
#include "placement/status_macros.h"
#include "proto/wire/clipped.h"
#include "proto/wire/json_value.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr size_t kMaxClaim = 128;  // bytes, as the protocol takes
constexpr size_t kUserRecordBytes = 16384;
constexpr size_t kMaxHostName = 256;

// "alice@host". The daemon shows it, marked as claimed, where nothing better names the caller.
std::string CallerName() {
  std::array<char, kUserRecordBytes> buffer;
  passwd entry{};
  passwd* found = nullptr;
  const bool named =
      getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found) == 0 && found != nullptr;
  std::string name = named ? entry.pw_name : absl::StrCat("uid ", getuid());
  std::array<char, kMaxHostName> host{};
  if (gethostname(host.data(), host.size() - 1) == 0) absl::StrAppend(&name, "@", host.data());
  return wire::IsUtf8(name) ? wire::Clipped(name, kMaxClaim) : "";
}

// 128 bits of the system's random numbers.
std::string DrawRequestId() {
  std::random_device device;
  return absl::StrFormat("%08x%08x%08x%08x", device(), device(), device(), device());
}

// Of `set policy`: what was in force, and what is.
std::string SettingsLines(const v1::AdminResponse& response) {
  if (response.after().empty()) return "";
  return absl::StrCat("  before    ", Printable(response.before()), "\n  in force  ",
                      Printable(response.after()), "\n");
}

}  // namespace

void AddChangeOptions(CLI::App& app, ChangeOptions& options,
                      const std::set<ExitCode>& more_exit_codes) {
  AddJobOption(app, options.job);
  app.add_option("--expect-version", options.expect_version,
                 "Change nothing unless this version is in force [the one just asked for]")
      ->check(&CheckNotNegative)
      ->type_name("V");
  AddRequestIdOption(app, options.request_id);
  app.add_option("--comment", options.comment, "Why, for the audit log")->type_name("TEXT");
  std::set<ExitCode> codes = {kNotFound, kConflict};
  codes.insert(more_exit_codes.begin(), more_exit_codes.end());
  AddQueryOptions(app, options.query, codes);
}

absl::Status FillChange(const ChangeOptions& options, v1::Change* change) {
  if (!wire::IsUtf8(options.comment)) {
    return absl::InvalidArgumentError("--comment is not UTF-8");
  }
  EPLB_ASSIGN_OR_RETURN(const std::string job, ChooseJob(options.query, options.job));
  change->set_job(job);
  change->set_request_id(options.request_id.empty() ? DrawRequestId() : options.request_id);
  change->set_comment(options.comment);
  change->set_claimed_by(CallerName());
  if (options.expect_version >= 0) {
    change->set_expect_version(static_cast<uint64_t>(options.expect_version));
    return absl::OkStatus();
  }
  v1::GetJobRequest request;
  request.set_job(job);
  v1::JobStatus status;
  EPLB_RETURN_IF_ERROR(Ask(options.query, request, &status));
  change->set_expect_version(status.version());
  return absl::OkStatus();
}

Output ChangeOutput(const ChangeOptions& options, const v1::Change& change,
                    const absl::Status& status, const v1::AdminResponse& response) {
  if (absl::IsDeadlineExceeded(status)) {
    return Failure(kTimeout,
                   absl::DeadlineExceededError(absl::StrCat(
                       status.message(), "; whether request ", change.request_id(),
                       " was executed is not known: see eplbctl get events --job ", change.job())));
  }
  if (!status.ok()) return QueryFailure(status);
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk,
            .out = absl::StrCat("{\"job\":", wire::JsonQuote(change.job()),
                                ",\"request_id\":", wire::JsonQuote(change.request_id()),
                                ",\"version\":", response.version(),
                                ",\"state\":", wire::JsonQuote(response.state()),
                                ",\"outcome\":", wire::JsonQuote(response.outcome()),
                                ",\"before\":", wire::JsonQuote(response.before()),
                                ",\"after\":", wire::JsonQuote(response.after()), "}\n"),
            .message = {}};
  }
  return {.exit_code = kOk,
          .out = absl::StrCat(Printable(change.job()), ": ", Printable(response.outcome()), " (",
                              Printable(response.state()), ", version ", response.version(), ")\n",
                              SettingsLines(response)),
          .message = {}};
}

}  // namespace eplb::cli
