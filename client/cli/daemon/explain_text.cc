#include "client/cli/daemon/explain_text.h"

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "client/cli/daemon/transfer_text.h"
#include "client/cli/gpu_picture.h"
#include "client/cli/text.h"
#include "placement/align.h"

namespace eplb::cli {
namespace {

constexpr size_t kLayersShown = 8;
constexpr int kIndent = 2;

std::string Heading(const std::string& text, const Terminal& terminal) {
  return absl::StrCat("\n", Paint(terminal, Colour::kBold, text), "\n");
}

std::string Indented(const std::string& text, const Terminal& terminal) {
  return Beside("", kIndent, text, terminal) + "\n";
}

std::string Summary(const Explanation& explanation, const Terminal& terminal) {
  const v1::JobStatus& job = explanation.job;
  std::string text =
      absl::StrCat(Paint(terminal, Colour::kBold, "Job " + Printable(job.job())), ": ",
                   Printable(job.state()), " for ", Seconds(job.state_seconds()), ", step ",
                   Grouped(static_cast<int64_t>(job.step())), ", version ", job.version(), "\n");
  if (!job.waiting_for().empty()) {
    absl::StrAppend(&text, Wrapped("waits for " + Printable(job.waiting_for()), terminal.width, 0),
                    "\n");
  }
  if (job.paused()) {
    absl::StrAppend(&text, Wrapped("paused: " + Printable(job.pause_reason()), terminal.width, 0),
                    "\n");
  }
  if (explanation.now) {
    absl::StrAppend(
        &text,
        Wrapped(
            absl::StrFormat("balancedness (mean / max GPU load) %.4f on steps %d..%d; of the "
                            "static layout %.4f",
                            explanation.now->mean_balancedness, explanation.window->first_step,
                            explanation.window->last_step, explanation.unmoved->mean_balancedness),
            terminal.width, kIndent),
        "\n");
  }
  return text;
}

std::string SwitchedText(const v1::Plan& plan) {
  std::string text =
      absl::StrFormat("plan %d, policy %s, decided on steps %d..%d, switched at step %d",
                      plan.plan(), Printable(plan.policy()), plan.decided_first_step(),
                      plan.decided_last_step(), plan.switched_step());
  if (!plan.asked_by().empty())
    absl::StrAppend(&text, ", asked for by ", Printable(plan.asked_by()));
  return text;
}

std::string MeasuredText(const v1::Plan& plan) {
  return absl::StrCat(
      plan.has_received_bytes()
          ? absl::StrFormat("%.1f MB received", static_cast<double>(plan.received_bytes()) / 1e6)
          : "received bytes not known",
      plan.has_pause_seconds() ? absl::StrCat(", longest pause ", Seconds(plan.pause_seconds()))
                               : ", longest pause not known");
}

std::string PlacementText(const Explanation& explanation, const Terminal& terminal) {
  const v1::Plan* const plan = explanation.switched();
  std::string text = Heading("Placement in force", terminal);
  if (plan == nullptr) {
    return text + Indented("no plan that this daemon remembers led to it", terminal);
  }
  absl::StrAppend(&text, Indented(SwitchedText(*plan), terminal),
                  Indented(Printable(plan->reason()), terminal));
  return text +
         Indented(absl::StrFormat("predicted balancedness %.3f -> %.3f; %s, %s",
                                  plan->balancedness_before(), plan->balancedness_predicted(),
                                  Counted(static_cast<int64_t>(plan->transfers()), "transfer"),
                                  MeasuredText(*plan)),
                  terminal);
}

std::string NewestText(const Explanation& explanation, const Terminal& terminal) {
  std::string text = Heading("Newest decision", terminal);
  if (explanation.plans.empty()) {
    const std::string& reason = explanation.job.last_reason();
    return text +
           Indented(reason.empty() ? "nothing was decided yet" : Printable(reason), terminal);
  }
  const v1::Plan& plan = explanation.plans.front();
  return text + Indented(absl::StrCat("plan ", plan.plan(), " ", Printable(plan.result()), ": ",
                                      Printable(plan.reason())),
                         terminal);
}

// What the decision behind the placement moved in a layer.
std::string MovedText(const Explanation& explanation, int32_t layer, const Terminal& terminal) {
  const std::optional<std::vector<Transfer>> transfers = TransfersOf(explanation, layer);
  if (!transfers) return "";
  std::vector<std::string> moves;
  for (const Transfer& transfer :
       std::span(*transfers).first(std::min(transfers->size(), kTransfersShown))) {
    moves.push_back(TransferText(transfer));
  }
  if (transfers->size() > moves.size()) moves.push_back(MoreTransfersText(transfers->size()));
  const v1::Plan& switched = *explanation.switched();
  const std::string text =
      moves.empty()
          ? absl::StrCat("plan ", switched.plan(), " moved no expert of this layer")
          : absl::StrCat("plan ", switched.plan(), " moved expert ", absl::StrJoin(moves, ", "));
  return absl::StrCat("\n", Wrapped(text, terminal.width, kIndent), "\n");
}

// The layer's GPU loads before the newest switch, else of the static layout.
Evaluation LoadsBefore(const Explanation& explanation) {
  if (explanation.before) {
    absl::StatusOr<Evaluation> before =
        Evaluate(explanation.window->load, explanation.before->placement);
    if (before.ok()) return *std::move(before);
  }
  return *explanation.unmoved;
}

std::vector<double> RowOf(const RealMatrix& loads, int32_t layer) {
  const auto row = loads.row(layer);
  return {row.data(), row.data() + row.size()};
}

std::string GpuList(const Placement& placement, LayerId layer, ExpertId expert) {
  std::vector<std::string> parts;
  for (const int32_t slot : placement.ReplicasOf(layer, expert)) {
    parts.push_back(absl::StrCat(placement.topology().GpuOf(SlotId{slot}).value, " (slot ", slot,
                                 parts.empty() ? ", primary)" : ")"));
  }
  return absl::StrJoin(parts, ", ");
}

double ShareOf(const Explanation& explanation, int32_t layer, int32_t expert) {
  const LoadMatrix& counts = explanation.window->load.counts();
  const double tokens = counts.row(layer).cast<double>().sum();
  return tokens > 0 ? static_cast<double>(counts(layer, expert)) / tokens : 0;
}

}  // namespace

std::string WorstLayers(const Explanation& explanation, size_t most, const Terminal& terminal) {
  if (explanation.layers.empty()) return "";
  Table table{.heading = {"layer", "model layer", "balancedness", "GPU", "x mean", "expert",
                          "of tokens", "replicas"},
              .right = {true, true, true, true, true, true, true, true},
              .rows = {}};
  const size_t shown = std::min(explanation.layers.size(), most);
  for (const LayerFigures& figures : std::span(explanation.layers).first(shown)) {
    table.rows.push_back(
        {absl::StrCat(figures.layer),
         figures.model_layer ? absl::StrCat(*figures.model_layer) : "-",
         absl::StrFormat("%.4f", figures.balancedness), absl::StrCat(figures.hottest_gpu),
         absl::StrFormat("%.2f", figures.hottest_gpu_load), absl::StrCat(figures.hottest_expert),
         Percent(figures.hottest_expert_share), absl::StrCat(figures.hottest_expert_replicas)});
  }
  const std::string which =
      shown == explanation.layers.size()
          ? "Layers, worst first"
          : absl::StrCat("The worst ", shown, " of ", explanation.layers.size(), " layers");
  return Heading(which + ", with their hottest GPU and hottest expert", terminal) +
         FormatTable(table, terminal);
}

std::string ExplainJob(const Explanation& explanation, const Terminal& terminal) {
  return absl::StrCat(Summary(explanation, terminal), PlacementText(explanation, terminal),
                      NewestText(explanation, terminal),
                      WorstLayers(explanation, kLayersShown, terminal));
}

std::string ExplainLayer(const Explanation& explanation, int32_t layer, const Terminal& terminal) {
  const Evaluation before = LoadsBefore(explanation);
  const std::vector<double> loads_before = RowOf(before.gpu_loads, layer);
  const std::vector<double> loads_now = RowOf(explanation.now->gpu_loads, layer);
  double mean = 0;
  for (const double tokens : loads_now) mean += tokens / static_cast<double>(loads_now.size());
  const std::string sentence =
      absl::StrFormat("%s: balancedness %.4f on steps %d..%d, %s it was %.4f",
                      LayerName(explanation.job, layer), explanation.now->balancedness[layer],
                      explanation.window->first_step, explanation.window->last_step,
                      explanation.before ? "before the newest switch" : "with the static layout",
                      before.balancedness[layer]);
  std::string text = Wrapped(sentence, terminal.width, kIndent) + "\n";
  if (mean > 0) {
    const Placement& placement = explanation.body->placement;
    GpuPicture picture{.before_name = explanation.before ? "before" : "static",
                       .after_name = "now",
                       .before = loads_before,
                       .after = loads_now,
                       .unusable = {},
                       .mean = mean};
    for (int32_t gpu = 0; gpu < placement.topology().num_gpus(); ++gpu) {
      picture.unusable.push_back(!placement.Holds(GpuId{gpu}));
    }
    absl::StrAppend(&text, "\n", DrawGpuLoads(picture, terminal));
  }
  return text + MovedText(explanation, layer, terminal);
}

std::string ExplainExpert(const Explanation& explanation, int32_t layer, int32_t expert,
                          const Terminal& terminal) {
  const Placement& placement = explanation.body->placement;
  const LayerId layer_id{layer};
  const ExpertId expert_id{expert};
  const int32_t replicas = placement.ReplicaCount(layer_id, expert_id);
  const double share = ShareOf(explanation, layer, expert);
  std::string text = absl::StrCat(
      Paint(terminal, Colour::kBold,
            absl::StrCat("Expert ", expert, " of ", LayerName(explanation.job, layer))),
      "\n");
  absl::StrAppend(
      &text,
      Indented(absl::StrFormat(
                   "takes %s of the layer's tokens on steps %d..%d, %.2f times an even "
                   "share; a replica takes %s",
                   Percent(share), explanation.window->first_step, explanation.window->last_step,
                   share * placement.topology().num_experts(), Percent(share / replicas)),
               terminal),
      Indented(absl::StrCat("has ", Counted(replicas, "replica"), ": on GPU ",
                            GpuList(placement, layer_id, expert_id)),
               terminal));
  if (!explanation.before) return text;
  const Placement& before = explanation.before->placement;
  if (!(before.topology() == placement.topology())) return text;
  const std::string was = GpuList(before, layer_id, expert_id);
  const std::string sentence =
      was == GpuList(placement, layer_id, expert_id)
          ? absl::StrCat("plan ", explanation.switched()->plan(), " left it where it was")
          : absl::StrCat("before plan ", explanation.switched()->plan(), ": on GPU ", was);
  return text + Indented(sentence, terminal);
}

}  // namespace eplb::cli
