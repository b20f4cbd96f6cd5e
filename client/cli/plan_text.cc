#include "client/cli/plan_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "proto/wire/message_json.h"

namespace eplb::cli {
namespace {

std::string ResultText(const v1::Plan& plan) {
  const uint32_t committed = plan.chunks_committed();
  return absl::StrCat(wire::EnumText(plan.result()),
                      committed == 0 || committed == plan.num_chunks()
                          ? ""
                          : absl::StrCat(" ", committed, "/", plan.num_chunks()));
}

// "0.741 +- 0.030"; a figure that no earlier prediction corrects is computed.
std::string PredictedText(const v1::Plan& plan) {
  if (!plan.has_balancedness_predicted()) return "";
  const std::string figure = absl::StrFormat("%.3f", plan.balancedness_predicted());
  if (plan.has_prediction_error()) {
    return absl::StrFormat("%s +- %.3f", figure, plan.prediction_error());
  }
  return figure + (plan.has_prediction_evidence() ? " +- unknown" : " (computed)");
}

std::string SeenText(const v1::Plan& plan) {
  if (plan.chunks_committed() == 0) return "";
  if (!plan.has_balancedness_seen()) return "not yet on a whole window";
  return absl::StrFormat("%.3f on steps %d..%d", plan.balancedness_seen(), plan.seen_first_step(),
                         plan.seen_last_step());
}

}  // namespace

const CellWords& PlanWords() {
  static const CellWords* const words =
      new CellWords{{"result", InWords<v1::Plan>(ResultText)},
                    {"balancedness_predicted", InWords<v1::Plan>(PredictedText)}};
  return *words;
}

std::string PlanFigures(const v1::Plan& plan) {
  CellWords words = PlanWords();
  words["balancedness_seen"] = InWords<v1::Plan>(SeenText);
  return FigureList(plan, words);
}

std::string ScenarioObjectiveText(std::string_view objective, const std::optional<double>& figure,
                                  std::string_view before_name,
                                  const std::optional<double>& before) {
  return absl::StrFormat(
      "Objective %s: max / mean GPU load, %s over the loads, is %s on average over layers (%s %s).",
      objective, objective == "worst" ? "largest" : "weighted mean", FigureText(figure),
      before_name, FigureText(before));
}

std::string ScenariosText(const v1::Plan& plan, const Terminal& terminal) {
  if (plan.scenarios().empty()) return "";
  Table table({"balancedness under", ">weight", ">before", ">proposed", ">worst layer"});
  for (const v1::ScenarioFigures& one : plan.scenarios()) {
    table.rows.push_back(
        {Shortened(Printable(one.load()), kMostText), absl::StrFormat("%.3g", one.weight()),
         FigureText(one.balancedness_in_force().mean()), FigureText(one.balancedness().mean()),
         FigureText(one.balancedness().min())});
  }
  const v1::ObjectiveFigures& all = plan.objective();
  table.rows.push_back({"any mixture, at least", "", FigureText(all.mixtures_at_least_in_force()),
                        FigureText(all.mixtures_at_least()), ""});
  const std::string objective =
      ScenarioObjectiveText(Printable(all.name()), all.mean(), "before", all.mean_in_force());
  return absl::StrCat(
      "\n", FormatTable(table, terminal),
      Beside("", 2, objective + " A load that resembles none of these may be less balanced.",
             terminal),
      "\n");
}

std::string PlanReason(const v1::Plan& plan) {
  const std::string who =
      plan.asked_by().empty() ? "" : absl::StrCat(" (asked for by ", plan.asked_by(), ")");
  return Printable(absl::StrCat("plan ", plan.plan(), who, ": ", plan.reason()));
}

}  // namespace eplb::cli
