// The report of a run as text.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "base/text.h"
#include "client/cli/gpu_picture.h"
#include "client/cli/message_table.h"
#include "client/cli/plan_text.h"
#include "client/cli/report_forms.h"
#include "client/cli/text.h"

namespace eplb::cli {

namespace {

// Tenths of a second below a minute of differences matter: Seconds() would round them away.
std::string Total(double seconds) { return absl::StrFormat("%.1f s", seconds); }

std::string OneDecimal(double fraction) { return absl::StrFormat("%.1f %%", 100 * fraction); }

// "12.3 % less", "0.4 % more".
std::string MoreOrLess(double part) {
  return absl::StrCat(OneDecimal(std::abs(part)), part < 0 ? " more" : " less");
}

std::string Title(const char* text, const Terminal& terminal) {
  return absl::StrCat("\n", Paint(terminal, Colour::kBold, text));
}

std::string RunHeading(const RunDirectory& run, const v1::RunReview& review,
                       const Terminal& terminal) {
  const Topology& shape = run.placements.front().placement.topology();
  return absl::StrCat(
      Paint(terminal, Colour::kBold, absl::StrCat("Run of job ", Printable(review.job()))), ": ",
      Counted(review.ranks(), "rank"), ", ", Counted(review.steps(), "step"), ", ",
      Counted(shape.num_layers(), "layer"), " of ", Counted(shape.num_experts(), "expert"), " in ",
      Counted(shape.num_slots(), "slot"), "\n\n");
}

bool SplitsBatches(const v1::RunReview& review) {
  return review.comparison().has_equal_shares_predicted();
}

const v1::RunRow& HindsightOf(const v1::RunReview& review) {
  return SplitsBatches(review) ? review.comparison().split_hindsight_predicted()
                               : review.comparison().deepseek_hindsight_predicted();
}

std::string Pauses(const v1::RunReview& review) {
  int switches = 0;
  for (const v1::RunDecision& one : review.decisions()) switches += one.switch_steps_size();
  if (switches == 0) return "Nothing was switched.";
  return absl::StrCat(Counted(switches, "pause"), " to move experts took ",
                      Seconds(review.time().pause_seconds()), " (longest ",
                      Seconds(review.time().longest_pause_seconds()),
                      "); all boundaries, with their votes, are ",
                      Seconds(review.time().boundary_seconds()), " of the measured time.");
}

// The first lines: the value of rebalancing.
std::string Speed(const v1::RunReview& review, const Terminal& terminal) {
  const v1::RunTime& time = review.time();
  if (!review.has_time_saved()) {
    return absl::StrCat(
        Paint(terminal, Colour::kBold, "No step has tokens: there is nothing to compare."), "\n",
        Paragraph(Pauses(review), terminal, 0));
  }
  if (!time.modelled()) {
    const std::string lead =
        absl::StrCat("The fullest GPUs of all steps had ", MoreOrLess(review.time_saved()),
                     " load than without EPLB.");
    return absl::StrCat(
        Paragraph(lead, terminal, 0, Colour::kBold),
        Paragraph(absl::StrCat("No speed-up was measured: these steps do not last in proportion to "
                               "their load (eplb-trainer --step-ms). They took ",
                               Total(time.measured_seconds()), ". ", Pauses(review)),
                  terminal, 0));
  }
  const double without = review.comparison().without_eplb_predicted().total_seconds();
  const double ratio = time.measured_seconds() > 0 ? without / time.measured_seconds() : 1;
  const std::string lead = absl::StrCat(
      MoreOrLess(without > 0 ? 1 - time.measured_seconds() / without : 0),
      " time than without EPLB: ", Total(time.measured_seconds()), " measured, ", Total(without),
      " predicted for one slot per expert (", OneDecimal(std::abs(ratio - 1)),
      ratio < 1 ? " fewer" : " more", " steps per second).");
  const std::string hindsight =
      absl::StrCat(" Planned in hindsight, which is not possible in a real run: ",
                   Total(HindsightOf(review).total_seconds()), ", predicted, without pauses.");
  return absl::StrCat(Paragraph(lead, terminal, 0, Colour::kBold),
                      Paragraph(absl::StrCat(Pauses(review), hindsight), terminal, 0));
}

// The measurement, and the basis of the predictions.
std::string BasisText(const RunDirectory& run, const v1::RunReview& review,
                      const Terminal& terminal) {
  if (!review.time().modelled() || !review.has_time_saved()) return "";
  std::string text = absl::StrFormat(
      "Measured: rank 0's wall clock over all steps, without the checks after a switch. A step of "
      "this trainer sleeps: it lasts %s x the load of the layers' fullest GPUs / the mean load. "
      "Predicted: the same steps with the fullest GPUs' load under the other placement. So a step "
      "is experts alone here; where experts are half of a step, expect half of the gain.",
      Seconds(run.report.even_step_seconds));
  if (review.time().steps_over_model() * 50 > review.steps()) {
    absl::StrAppend(&text, " In ", review.time().steps_over_model(), " of ", review.steps(),
                    " steps this machine needed longer than that, whatever the placement: they "
                    "hide a part of the gain.");
  }
  return absl::StrCat("\n", Paragraph(text, terminal, 0));
}

std::string HeldBackText(const v1::RunReview& review) {
  std::vector<std::string> stretches;
  for (const v1::HeldBack& stretch : review.operators().held_back()) {
    stretches.push_back(
        absl::StrCat(stretch.first_step(), "..", stretch.last_step(), " ", stretch.why()));
  }
  return absl::StrCat(
      "Left out of the comparison are the steps in which operators held decisions back: ",
      absl::StrJoin(stretches, ", "), ".");
}

std::string Comparison(const v1::RunReview& review, const Terminal& terminal) {
  const v1::RunComparison& all = review.comparison();
  std::vector<v1::RunRow> rows = {all.without_eplb_predicted(), all.static_predicted(), all.run()};
  if (SplitsBatches(review)) {
    rows.insert(rows.end() - 1, all.equal_shares_predicted());
  } else {
    rows.push_back(all.deepseek_same_windows_predicted());
  }
  rows.push_back(HindsightOf(review));
  std::string note =
      "Balancedness: mean / max GPU load; fullest GPU: its load / the mean load. Without EPLB each "
      "expert has one slot. Only the row of this run is measured; the others are predicted from "
      "its loads, a copied expert weighing what it weighed here.";
  if (SplitsBatches(review)) {
    note +=
        " Objective: exact split per batch. This run and hindsight split each step exactly; the "
        "static layout has equal shares.";
  } else {
    note += " Objective: equal shares.";
  }
  if (review.time().modelled()) note += " Steps without their boundaries.";
  if (LeavesStepsOut(review)) absl::StrAppend(&note, " ", HeldBackText(review));
  return absl::StrCat(
      Title("Comparison", terminal), " (mean of ", Counted(all.steps(), "step"), ", ",
      all.first_step(), "..", review.steps() - 1, ")\n",
      FormatTable(MessageTable(rows, terminal, {{"name", InWords<v1::RunRow>(&v1::RunRow::name)}}),
                  terminal),
      Paragraph(note, terminal, 0));
}

std::string Decisions(const v1::RunReview& review, const Terminal& terminal) {
  std::string text = absl::StrCat(Title("Decisions", terminal), ": promised and measured\n");
  if (review.decisions().empty()) return text + "none was carried out\n";
  std::vector<const google::protobuf::Message*> plans;
  for (const v1::RunDecision& one : review.decisions()) plans.push_back(&one.plan());
  // All are committed, and their switches have a column of their own.
  const auto left_out = [](const google::protobuf::Message&) { return std::string(); };
  Table table = MessageTable(plans, terminal, {{"result", left_out}, {"switched_step", left_out}});
  for (const char* column : {">computed", ">until next", "switched at"}) table.AddColumn(column);
  for (int i = 0; i < review.decisions_size(); ++i) {
    const v1::RunDecision& one = review.decisions(i);
    std::vector<std::string>& row = table.rows[i];
    row.push_back(
        OrDash(one.has_balancedness_computed(), FigureText(one.balancedness_computed(), 3)));
    row.push_back(
        OrDash(one.has_balancedness_until_next(), FigureText(one.balancedness_until_next(), 3)));
    row.push_back(absl::StrJoin(one.switch_steps(), ","));
  }
  absl::StrAppend(
      &text, FormatTable(std::move(table), terminal),
      Paragraph(
          std::string(SplitsBatches(review)
                          ? "Balancedness of summed loads, against each step's fullest GPU."
                          : "Balancedness of summed loads.") +
              " measured: on the steps that the decision covers; computed: of the new placement on "
              "the same load; until next: measured from the switch to the next one. "
              "pause: longest of any rank.",
          terminal, 0),
      Title("Why", terminal), "\n");
  for (const v1::RunDecision& one : review.decisions()) {
    text += Paragraph(PlanReason(one.plan()), terminal);
  }
  return text;
}

std::string Operators(const v1::RunReview& review, const Terminal& terminal) {
  const std::string title = absl::StrCat(Title("Operators", terminal), "\n");
  if (!review.has_operators()) {
    return title + Paragraph(
                       "Pauses and settings are known to the daemon alone. To see them here: "
                       "eplbctl get events --limit 1000 -o json > DIR/events.json",
                       terminal, 0);
  }
  const auto& actions = review.operators().actions();
  std::string text = title;
  if (const int64_t first = review.operators().first_step(); first > 0) {
    const std::string begin = first < review.steps()
                                  ? absl::StrCat("before step ", first, ", where it begins")
                                  : std::string("in any step of the run");
    text += Paragraph(absl::StrCat("The audit log does not show what was changed ", begin,
                                   "; eplbctl get events --limit 1000 gives the most of it"),
                      terminal);
  } else if (actions.empty()) {
    text += "changed nothing\n";
  }
  for (const v1::OperatorAction& action : actions) {
    std::string line =
        action.step() < 0 ? "before step 0" : absl::StrCat("after step ", action.step());
    absl::StrAppend(&line, ": ", action.name());
    if (!action.actor().empty()) absl::StrAppend(&line, " by ", action.actor());
    absl::StrAppend(&line, ": ", action.reason());
    if (action.before() != action.after()) {
      absl::StrAppend(&line, " (", action.before(), " -> ", action.after(), ")");
    }
    text += Paragraph(Printable(line), terminal);
  }
  return text;
}

std::string RunGpuLoads(const v1::RunReview& review, const Terminal& terminal) {
  const v1::RunGpuLoads& shown = review.gpu_loads();
  const std::vector<double> before(shown.static_().begin(), shown.static_().end());
  const std::vector<double> loads(shown.run().begin(), shown.run().end());
  const double mean =
      std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
  if (!(mean > 0)) return "";  // no layer has tokens
  const std::string heading = absl::StrCat("GPU loads of layer ", shown.layer());
  const GpuPicture picture{.before_name = "static",
                           .after_name = "this run",
                           .before = before,
                           .after = loads,
                           .unusable = std::vector<bool>(loads.size()),
                           .mean = mean};
  return absl::StrCat("\n", Paint(terminal, Colour::kBold, heading), ", steps ",
                      review.comparison().first_step(), "..", review.steps() - 1, "; the mean is ",
                      Tokens(mean), " tokens\n", DrawGpuLoads(picture, terminal));
}

std::string VerdictText(const v1::RunReview& review, const Terminal& terminal) {
  if (review.problems().empty()) {
    const std::string text = absl::StrCat(
        "Verified: ", BytesText(review.bytes_verified()),
        " of expert memory recomputed and equal; no invariant broken in the logs of ",
        Counted(review.ranks(), "rank"), "; reported balancedness equals the recomputed within ",
        absl::StrFormat("%.1g", review.balancedness().largest_difference_to_reported()), ".");
    return "\n" + Paragraph(text, terminal, 2, Colour::kGreen);
  }
  std::string text = absl::StrCat("\n", Paint(terminal, Colour::kRed, "Not verified"), ": ",
                                  Counted(review.problems_size(), "problem"), "\n");
  constexpr int kMaxProblems = 20;
  for (int i = 0; i < std::min(review.problems_size(), kMaxProblems); ++i) {
    absl::StrAppend(&text, "  ", review.problems(i), "\n");
  }
  if (review.problems_size() > kMaxProblems) {
    absl::StrAppend(&text, "  and ", review.problems_size() - kMaxProblems,
                    " more (-o json has them all)\n");
  }
  return text;
}

}  // namespace

std::string ReportText(const RunDirectory& run, const v1::RunReview& review,
                       const Terminal& terminal) {
  return absl::StrCat(RunHeading(run, review, terminal), Speed(review, terminal),
                      BasisText(run, review, terminal), Comparison(review, terminal),
                      Decisions(review, terminal), Operators(review, terminal),
                      RunGpuLoads(review, terminal), VerdictText(review, terminal));
}

}  // namespace eplb::cli
