// The report of a run as text.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "client/cli/gpu_picture.h"
#include "client/cli/report_forms.h"
#include "client/cli/text.h"

namespace eplb::cli {

namespace {

std::string Megabytes(int64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

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

std::string RunHeading(const RunDirectory& run, const RunReview& review, const Terminal& terminal) {
  const Topology& shape = run.placements.front().placement.topology();
  return absl::StrCat(
      Paint(terminal, Colour::kBold, absl::StrCat("Run of job ", Printable(run.report.job))), ": ",
      Counted(run.histories.size(), "rank"), ", ", Counted(review.steps, "step"), ", ",
      Counted(shape.num_layers(), "layer"), " of ", Counted(shape.num_experts(), "expert"), " in ",
      Counted(shape.num_slots(), "slot"), "\n\n");
}

bool SplitsBatches(const RunReview& review) { return review.split == SplitMode::kBatch; }

const RunRow& HindsightOf(const RunReview& review) {
  return SplitsBatches(review) ? review.hindsight_split : review.hindsight;
}

std::string Pauses(const RunReview& review) {
  size_t switches = 0;
  for (const RunDecision& decision : review.decisions) switches += decision.switch_steps.size();
  if (switches == 0) return "Nothing was switched.";
  return absl::StrCat("Of the measured time ", Seconds(review.time.switch_seconds),
                      " was spent in ", Counted(switches, "pause"), " to move experts (longest ",
                      Seconds(review.time.longest_pause_seconds), ").");
}

// The first lines: the value of rebalancing.
std::string Speed(const RunReview& review, const Terminal& terminal) {
  const RunTime& time = review.time;
  if (!review.time_saved()) {
    return absl::StrCat(
        Paint(terminal, Colour::kBold, "No step has tokens: there is nothing to compare."), "\n",
        Paragraph(Pauses(review), terminal, 0));
  }
  if (!time.modelled) {
    const std::string lead =
        absl::StrCat("The fullest GPUs of all steps had ", MoreOrLess(*review.time_saved()),
                     " load than without EPLB.");
    return absl::StrCat(
        Paragraph(lead, terminal, 0, Colour::kBold),
        Paragraph(absl::StrCat("No speed-up was measured: these steps do not last in proportion to "
                               "their load (eplb-trainer --step-ms). They took ",
                               Total(time.measured_seconds), ". ", Pauses(review)),
                  terminal, 0));
  }
  const double without = review.without_eplb.total_seconds;
  const double ratio = time.measured_seconds > 0 ? without / time.measured_seconds : 1;
  const std::string lead = absl::StrCat(
      MoreOrLess(without > 0 ? 1 - time.measured_seconds / without : 0),
      " time than without EPLB: ", Total(time.measured_seconds), " measured, ", Total(without),
      " predicted for one slot per expert (", OneDecimal(std::abs(ratio - 1)),
      ratio < 1 ? " fewer" : " more", " steps per second).");
  const std::string hindsight =
      absl::StrCat(" Planned in hindsight, which is not possible in a real run: ",
                   Total(HindsightOf(review).total_seconds), ", predicted, without pauses.");
  return absl::StrCat(Paragraph(lead, terminal, 0, Colour::kBold),
                      Paragraph(absl::StrCat(Pauses(review), hindsight), terminal, 0));
}

// The measurement, and the basis of the predictions.
std::string BasisText(const RunDirectory& run, const RunReview& review, const Terminal& terminal) {
  if (!review.time.modelled || !review.time_saved()) return "";
  std::string text = absl::StrFormat(
      "Measured: rank 0's wall clock over all steps, without the checks after a switch. A step of "
      "this trainer sleeps: it lasts %s x the load of the layers' fullest GPUs / the mean load. "
      "Predicted: the same steps with the fullest GPUs' load under the other placement. So a step "
      "is experts alone here; where experts are half of a step, expect half of the gain.",
      Seconds(run.report.even_step_seconds));
  if (review.time.steps_over_model * 50 > review.steps) {
    absl::StrAppend(&text, " In ", review.time.steps_over_model, " of ", review.steps,
                    " steps this machine needed longer than that, whatever the placement: they "
                    "hide a part of the gain.");
  }
  return absl::StrCat("\n", Paragraph(text, terminal, 0));
}

std::string HeldBackText(const RunReview& review) {
  std::vector<std::string> stretches;
  for (const HeldBack& stretch : review.operators.held_back) {
    stretches.push_back(
        absl::StrCat(stretch.first_step, "..", stretch.last_step, " ", stretch.why));
  }
  return absl::StrCat(
      "Left out of the comparison are the steps in which operators held decisions back: ",
      absl::StrJoin(stretches, ", "), ".");
}

std::string Comparison(const RunReview& review, const Terminal& terminal) {
  const auto row = [&review](const std::string& name, const RunRow& one) {
    std::vector<std::string> cells = {name, FigureText(one.balancedness),
                                      FigureText(one.slowdown, 3)};
    if (review.time.modelled) cells.push_back(Seconds(one.step_seconds));
    cells.push_back(one.bytes.has_value() ? Megabytes(*one.bytes) : "-");
    return cells;
  };
  const std::string hindsight = absl::StrCat("hindsight, ", review.window_steps, " steps each");
  Table table({"", ">balancedness", ">fullest GPU"});
  if (review.time.modelled) table.AddColumn(">step");
  table.AddColumn(">moved");
  table.rows = {row("without EPLB", review.without_eplb), row("static layout", review.unmoved)};
  if (SplitsBatches(review)) {
    table.rows.push_back(row("equal shares, same placements", review.equal_shares));
    table.rows.push_back(row("this run", review.run));
  } else {
    table.rows.push_back(row("this run", review.run));
    table.rows.push_back(row("policy deepseek, same times", review.policy));
  }
  table.rows.push_back(row(hindsight, HindsightOf(review)));
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
  if (review.time.modelled) note += " Steps without their boundaries.";
  if (review.leaves_steps_out()) absl::StrAppend(&note, " ", HeldBackText(review));
  return absl::StrCat(Title("Comparison", terminal), " (mean of ",
                      Counted(review.compared_steps, "step"), ", ", review.compared_first_step,
                      "..", review.steps - 1, ")\n", FormatTable(table, terminal),
                      Paragraph(note, terminal, 0));
}

std::string StepRange(int64_t first, int64_t last) { return absl::StrCat(first, "..", last); }

// True unless one policy made every decision.
bool NamesDeciders(const std::vector<RunDecision>& decisions) {
  return std::ranges::any_of(decisions, [&](const RunDecision& one) {
    return !one.asked_by.empty() || one.policy != decisions.front().policy;
  });
}

std::string Decisions(const RunReview& review, const Terminal& terminal) {
  std::string text = absl::StrCat(Title("Decisions", terminal), ": promised and measured\n");
  if (review.decisions.empty()) return text + "none was put in force\n";
  const bool names = NamesDeciders(review.decisions);
  Table table({">#", "on steps", "after", ">moved", ">pause", ">was", ">computed", ">until next"});
  if (names) table.AddColumn("by");
  for (const RunDecision& one : review.decisions) {
    table.rows.push_back({one.decision == 0 ? "-" : absl::StrCat(one.decision),
                          StepRange(one.decided_first_step, one.decided_last_step),
                          absl::StrJoin(one.switch_steps, ", "), Megabytes(one.bytes_moved),
                          Seconds(one.pause_seconds), FigureText(one.before, 3),
                          FigureText(one.computed, 3), FigureText(one.until_next, 3)});
    if (names) table.rows.back().push_back(one.policy);
  }
  absl::StrAppend(
      &text, FormatTable(table, terminal),
      Paragraph(std::string(SplitsBatches(review)
                                ? "Balancedness of summed loads, against each step's fullest GPU."
                                : "Balancedness of summed loads.") +
                    " was: measured on the steps that were decided on; computed: of the new "
                    "placement on the same load; until next: measured from the switch to the next "
                    "one. pause: longest boundary of any rank.",
                terminal, 0),
      Title("Why", terminal), "\n");
  for (const RunDecision& one : review.decisions) {
    std::string label = one.decision == 0 ? "" : absl::StrCat(one.decision, ": ");
    if (!one.asked_by.empty()) absl::StrAppend(&label, "asked by ", Printable(one.asked_by), ": ");
    text += Paragraph(label + Printable(one.reason), terminal);
  }
  return text;
}

std::string Operators(const RunDirectory& run, const RunReview& review, const Terminal& terminal) {
  const std::string title = absl::StrCat(Title("Operators", terminal), "\n");
  if (!run.events.has_value()) {
    return title + Paragraph(
                       "Pauses and settings are known to the daemon alone. To see them here: "
                       "eplbctl get events --limit 1000 -o json > DIR/events.json",
                       terminal, 0);
  }
  if (review.operators.actions.empty()) return title + "changed nothing\n";
  std::string text = title;
  for (const OperatorAction& action : review.operators.actions) {
    const std::string when =
        action.step < 0 ? "before step 0" : absl::StrCat("after step ", action.step);
    std::string line = absl::StrCat(when, ": ", action.name);
    if (!action.actor.empty()) absl::StrAppend(&line, " by ", Printable(action.actor));
    absl::StrAppend(&line, ": ", Printable(action.reason));
    if (action.before != action.after) {
      absl::StrAppend(&line, " (", Printable(action.before), " -> ", Printable(action.after), ")");
    }
    text += Paragraph(line, terminal);
  }
  return text;
}

std::string RunGpuLoads(const RunReview& review, const Terminal& terminal) {
  const std::vector<double>& loads = review.gpu_loads_run;
  const double mean =
      std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
  if (!(mean > 0)) return "";  // no layer has tokens
  const std::string heading = absl::StrCat("GPU loads of layer ", review.worst_layer);
  const GpuPicture picture{.before_name = "static",
                           .after_name = "this run",
                           .before = review.gpu_loads_unmoved,
                           .after = loads,
                           .unusable = std::vector<bool>(loads.size()),
                           .mean = mean};
  return absl::StrCat("\n", Paint(terminal, Colour::kBold, heading), ", steps ",
                      StepRange(review.compared_first_step, review.steps - 1), "; the mean is ",
                      Tokens(mean), " tokens\n", DrawGpuLoads(picture, terminal));
}

std::string VerdictText(const RunDirectory& run, const RunReview& review,
                        const Terminal& terminal) {
  if (review.problems.empty()) {
    const std::string text =
        absl::StrCat("Verified: ", Megabytes(run.report.bytes_verified),
                     " of expert memory recomputed and equal; no invariant broken in the logs of ",
                     Counted(run.histories.size(), "rank"),
                     "; reported balancedness equals the recomputed within ",
                     absl::StrFormat("%.1g", review.largest_difference), ".");
    return "\n" + Paragraph(text, terminal, 2, Colour::kGreen);
  }
  std::string text = absl::StrCat("\n", Paint(terminal, Colour::kRed, "Not verified"), ": ",
                                  Counted(review.problems.size(), "problem"), "\n");
  constexpr size_t kMaxProblems = 20;
  for (size_t i = 0; i < std::min(review.problems.size(), kMaxProblems); ++i) {
    absl::StrAppend(&text, "  ", review.problems[i], "\n");
  }
  if (review.problems.size() > kMaxProblems) {
    absl::StrAppend(&text, "  and ", review.problems.size() - kMaxProblems,
                    " more (-o json has them all)\n");
  }
  return text;
}

}  // namespace

std::string ReportText(const RunDirectory& run, const RunReview& review, const Terminal& terminal) {
  return absl::StrCat(RunHeading(run, review, terminal), Speed(review, terminal),
                      BasisText(run, review, terminal), Comparison(review, terminal),
                      Decisions(review, terminal), Operators(run, review, terminal),
                      RunGpuLoads(review, terminal), VerdictText(run, review, terminal));
}

}  // namespace eplb::cli
