#include "client/cli/status.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/explain.h"
#include "client/cli/explain_text.h"
#include "client/cli/gpu_picture.h"
#include "client/cli/job_json.h"
#include "client/cli/job_text.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include "eplb/v1/query.pb.h"
#include <CLI/CLI.hpp>

namespace eplb::cli {

namespace {

constexpr int kMaxStatusName = 24;
constexpr int kIndent = 2;

std::string Daemon(const v1::GetStatusResponse& response, const Terminal& terminal) {
  std::string text =
      absl::StrCat(Paint(terminal, Colour::kBold, "eplbd " + Printable(response.server_version())),
                   ", up ", Seconds(response.uptime_seconds()), ", term ", response.term(), ", ",
                   response.ready() ? Paint(terminal, Colour::kGreen, "ready")
                                    : Paint(terminal, Colour::kRed, "not ready"));
  if (!response.leader().empty()) {
    absl::StrAppend(&text, ", leads at ", Printable(response.leader()), " by ",
                    Printable(response.store()));
  }
  if (!response.ready() && !response.not_ready_reason().empty()) {
    absl::StrAppend(&text, "\n",
                    Wrapped(Printable(response.not_ready_reason()), terminal.width, 0));
  }
  for (const std::string& warning : response.warnings()) {
    const std::string sentence = absl::StrCat("warning: ", Printable(warning));
    absl::StrAppend(&text, "\n",
                    Paint(terminal, Colour::kYellow, Wrapped(sentence, terminal.width, kIndent)));
  }
  return text + "\n";
}

// Of jobs that the daemon does not have: they are in no table.
std::string Refusals(const v1::GetStatusResponse& response, const Terminal& terminal) {
  std::string text;
  for (const v1::Refusal& refusal : response.refusals()) {
    const std::string sentence = Printable(
        absl::StrCat(Shortened(refusal.job(), kMaxStatusName), " is not served: ", refusal.reason(),
                     " (", Counted(static_cast<int64_t>(refusal.count()), "refusal"),
                     ", the newest ", Seconds(refusal.seconds_ago()), " ago)"));
    absl::StrAppend(&text, "\n",
                    Paint(terminal, Colour::kRed, Wrapped(sentence, terminal.width, kIndent)),
                    "\n");
  }
  return text;
}

Table JobTable(const v1::GetStatusResponse& response, const Terminal& terminal) {
  Table table{.heading = {"job", "state", "since", "ranks", "step", "version", "run", "measured",
                          "without EPLB", "predicted", "seen"},
              .right = {false, false, true, true, true, true, true, true, true, true, true},
              .rows = {}};
  for (const v1::JobStatus& job : response.jobs()) {
    const auto if_set = [](bool is_set, double ratio) {
      return RatioText(is_set ? std::optional(ratio) : std::nullopt);
    };
    table.rows.push_back(
        {Shortened(Printable(job.job()), kMaxStatusName), Shortened(StateText(job), kMaxStatusName),
         Seconds(job.state_seconds()), absl::StrCat(job.connected_ranks(), "/", job.world_size()),
         Grouped(static_cast<int64_t>(job.step())), Grouped(static_cast<int64_t>(job.version())),
         RunText(job), RatioText(job.balancedness()),
         if_set(job.has_balancedness_without_eplb(), job.balancedness_without_eplb()),
         if_set(job.has_balancedness_predicted(), job.balancedness_predicted()),
         if_set(job.has_balancedness_seen(), job.balancedness_seen())});
  }
  // The ratios are in the job's notes, too.
  constexpr std::string_view kOptional[] = {"run",          "seen",    "predicted",
                                            "without EPLB", "version", "since"};
  DropToFit(table, kOptional, terminal.width);
  return table;
}

// What a row has no room for.
std::string Notes(const v1::JobStatus& job, const Terminal& terminal) {
  const std::string name = Shortened(Printable(job.job()), kMaxStatusName) + " ";
  std::string text = StateNotes(job, name, terminal);
  absl::StrAppend(&text,
                  Wrapped(name + "balancedness " + BalancednessText(job), terminal.width, kIndent),
                  "\n");
  if (const std::string objective = ObjectiveText(job); !objective.empty()) {
    absl::StrAppend(&text, Wrapped(name + objective, terminal.width, kIndent), "\n");
  }
  if (!job.last_reason().empty()) {
    absl::StrAppend(&text,
                    Wrapped(absl::StrCat(name, "last decision: ", Printable(job.last_reason())),
                            terminal.width, kIndent),
                    "\n");
  }
  return text;
}

// Leaves one job and its refusals. errors: NotFound when the daemon has neither.
absl::Status KeepJob(const std::string& job, v1::GetStatusResponse* response) {
  if (job.empty()) return absl::OkStatus();
  const auto is_another = [&job](const auto& one) { return one.job() != job; };
  auto* jobs = response->mutable_jobs();
  jobs->erase(std::remove_if(jobs->begin(), jobs->end(), is_another), jobs->end());
  auto* refusals = response->mutable_refusals();
  refusals->erase(std::remove_if(refusals->begin(), refusals->end(), is_another), refusals->end());
  if (!jobs->empty() || !refusals->empty()) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("the daemon has no job ", Printable(job)));
}

}  // namespace

Output RunStatus(const StatusOptions& options, const Terminal& terminal) {
  v1::GetStatusResponse response;
  if (const absl::Status status = AskStatus(options.query, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (const absl::Status status = KeepJob(options.job, &response); !status.ok()) {
    return QueryFailure(status);
  }
  if (options.query.format == Format::kJson) {
    return {.exit_code = kOk, .out = StatusToJson(response, options.ranks), .message = {}};
  }
  std::string text = Daemon(response, terminal);
  if (response.jobs().empty()) {
    absl::StrAppend(&text, "\n",
                    response.jobs_hidden() ? kNoVisibleJob : "no job has connected yet", "\n",
                    Refusals(response, terminal));
    return {.exit_code = kOk, .out = std::move(text), .message = {}};
  }
  absl::StrAppend(&text, "\n", FormatTable(JobTable(response, terminal), terminal));
  for (const v1::JobStatus& job : response.jobs()) {
    absl::StrAppend(&text, "\n", Notes(job, terminal));
  }
  absl::StrAppend(&text, Refusals(response, terminal));
  return {.exit_code = kOk, .out = std::move(text), .message = {}};
}

void AddStatus(CLI::App& root, Command& command) {
  const auto options = std::make_shared<StatusOptions>();
  CLI::App& app = *root.add_subcommand("status", "The daemon and its jobs");
  AddJobOption(app, options->job, "Only this job [all]");
  app.add_flag("--ranks", options->ranks, "With -o json: every rank of every job, too");
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunStatus(*options, terminal); });
}

namespace {

constexpr size_t kTopLayers = 5;
constexpr int kTopIndent = 2;

// [G], summed over layers: what a GPU works in a step.
std::vector<double> SumOverLayers(const Evaluation& evaluation) {
  const auto sums = evaluation.gpu_loads.colwise().sum().eval();
  return {sums.data(), sums.data() + sums.size()};
}

// Beside the static layout what the GPUs got, or what they would get where that is not known.
std::string GpusText(const Explanation& explanation, const Terminal& terminal) {
  const std::vector<double> before = SumOverLayers(*explanation.unmoved);
  const std::vector<double> after = SumOverLayers(*explanation.shown());
  double mean = 0;
  for (const double tokens : after) mean += tokens / static_cast<double>(after.size());
  if (!(mean > 0)) return "";
  const Placement& placement = explanation.body->placement;
  GpuPicture picture{.before_name = "static",
                     .after_name = explanation.shown_name(),
                     .before = before,
                     .after = after,
                     .unusable = {},
                     .mean = mean};
  for (int32_t gpu = 0; gpu < placement.topology().num_gpus(); ++gpu) {
    picture.unusable.push_back(!placement.Holds(GpuId{gpu}));
  }
  const std::string heading =
      absl::StrFormat("GPU loads, all layers, steps %d..%d", explanation.load->window.first_step,
                      explanation.load->window.last_step);
  return absl::StrCat("\n", Paint(terminal, Colour::kBold, heading), "\n",
                      DrawGpuLoads(picture, terminal));
}

// How far the rebalance in flight is on its ranks; empty when none is.
std::string InFlightText(const Explanation& explanation) {
  const v1::JobStatus& job = explanation.job;
  const bool in_flight = job.state() == v1::JOB_STATE_PREPARING ||
                         job.state() == v1::JOB_STATE_VOTING ||
                         job.state() == v1::JOB_STATE_CANCELLING;
  if (!in_flight) return "";
  std::string text = "in flight: ";
  if (!explanation.plans.empty() &&
      explanation.plans.front().result() == v1::PLAN_RESULT_PROPOSED) {
    const v1::Plan& plan = explanation.plans.front();
    absl::StrAppend(&text, "decision ", plan.plan(), ", chunk ", plan.chunks_committed() + 1,
                    " of ", plan.num_chunks(), ", ");
  }
  int prepared = 0;
  int applied = 0;
  const v1::RankStatus* slowest = nullptr;
  for (const v1::RankStatus& rank : job.ranks()) {
    const bool has_applied = rank.answer() == v1::RANK_ANSWER_APPLIED;
    if (has_applied) ++applied;
    if (!has_applied && rank.answer() != v1::RANK_ANSWER_PREPARED) continue;
    ++prepared;
    if (slowest == nullptr || rank.answer_seconds() > slowest->answer_seconds()) slowest = &rank;
  }
  absl::StrAppend(&text, prepared, " of ", job.world_size(), " ranks were PREPARED");
  if (slowest != nullptr && slowest->has_answer_seconds()) {
    absl::StrAppend(&text, ", rank ", slowest->rank(), " last, after ",
                    Seconds(slowest->answer_seconds()));
  }
  if (job.state() != v1::JOB_STATE_PREPARING)
    absl::StrAppend(&text, "; ", applied, " have switched");
  return text;
}

// The most important first: a window too low for all of it shows the beginning.
std::string ScreenText(const Explanation& explanation, const Terminal& terminal) {
  const v1::JobStatus& job = explanation.job;
  std::string text = absl::StrCat(
      Paint(terminal, Colour::kBold, Printable(job.job())), "  ", StateText(job), " ",
      Seconds(job.state_seconds()), "  ranks ", job.connected_ranks(), "/", job.world_size(),
      "  step ", Grouped(static_cast<int64_t>(job.step())), "  version ", job.version(),
      job.run_number() == 0 ? "" : absl::StrCat("  run ", job.run_number()), "\n",
      Wrapped(BalancednessText(job), terminal.width, kTopIndent), "\n",
      StateNotes(job, "", terminal));
  if (const std::string text_in_flight = InFlightText(explanation); !text_in_flight.empty()) {
    absl::StrAppend(&text, Wrapped(text_in_flight, terminal.width, kTopIndent), "\n");
  }
  if (explanation.shown() != nullptr) {
    absl::StrAppend(&text, GpusText(explanation, terminal),
                    WorstLayers(explanation, kTopLayers, terminal));
  }
  if (!job.last_reason().empty()) {
    absl::StrAppend(
        &text, "\n",
        Wrapped("last decision: " + Printable(job.last_reason()), terminal.width, kTopIndent),
        "\n");
  }
  return text;
}

}  // namespace

Output RunTop(const TopOptions& options, const Terminal& terminal) {
  const absl::StatusOr<Explanation> explanation = AskExplanation(options.query, options.job);
  if (!explanation.ok()) return QueryFailure(explanation.status());
  return {.exit_code = kOk,
          .out = options.query.format == Format::kJson ? ExplanationToJson(*explanation, -1, -1)
                                                       : ScreenText(*explanation, terminal),
          .message = {}};
}

void AddTop(CLI::App& root, Command& command) {
  const auto options = std::make_shared<TopOptions>();
  CLI::App& app = *root.add_subcommand("top", "A job's GPU loads and worst layers, live");
  AddJobOption(app, options->job);
  AddQueryOptions(app, options->query, {kNotFound});
  AddLive(app, command, [options](const Terminal& terminal) { return RunTop(*options, terminal); });
}

}  // namespace eplb::cli
