// `eplbctl explain` as text, and the parts of it that `top` and `diff` show.
#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

#include "client/cli/explanation.h"
#include "client/cli/job_text.h"
#include "client/cli/message_table.h"
#include "client/cli/plan_text.h"
#include "client/cli/text.h"
#include "placement/backtest/candidate.h"
#include "proto/wire/message_json.h"

namespace eplb::cli {

std::string TransferText(const Transfer& transfer) {
  return absl::StrCat(transfer.expert.value, " (GPU ", transfer.source.value, " -> ",
                      transfer.destination.value, ")");
}

std::string MoreTransfersText(size_t count) {
  if (count <= kTransfersShown) return "";
  return absl::StrCat("and ", Grouped(count - kTransfersShown), " more (-o json lists all)");
}

namespace {

constexpr size_t kLayersShown = 8;
constexpr size_t kCandidatesShown = 8;  // besides "do nothing"
constexpr int kExplainIndent = 2;

std::string Section(const std::string& text, const Terminal& terminal) {
  return "\n" + Heading(text, terminal);
}

std::string Indented(const std::string& text, const Terminal& terminal) {
  return Beside("", kExplainIndent, text, terminal) + "\n";
}

// "run 3, term 2, 120.0 ms a step" on a line of its own, as far as it is known.
std::string RunAndRate(const v1::JobStatus& job) {
  std::vector<std::string> parts;
  if (job.run_number() > 0) parts.push_back(absl::StrCat("run ", job.run_number()));
  if (job.term() > 0) parts.push_back(absl::StrCat("term ", job.term()));
  if (job.has_step_seconds()) parts.push_back(Seconds(job.step_seconds()) + " a step");
  return parts.empty() ? "" : absl::StrJoin(parts, ", ") + "\n";
}

std::string Summary(const Explanation& explanation, const Terminal& terminal) {
  const v1::JobStatus& job = explanation.job;
  std::string text = absl::StrCat(Paint(terminal, Colour::kBold, "Job " + Printable(job.job())),
                                  ": ", StateText(job), " for ", Seconds(job.state_seconds()), ", ",
                                  StepText(job), ", version ", job.version(), "\n", RunAndRate(job),
                                  StateNotes(job, "", terminal));
  return absl::StrCat(
      text, Paragraph("balancedness (mean / max GPU load): " + BalancednessText(job), terminal),
      Paragraph(ObjectiveText(job), terminal));
}

std::string CurrentSettings(const v1::JobStatus& job, const Terminal& terminal) {
  if (job.policy().name().empty()) return "";
  return Section("Current settings", terminal) + Indented(SettingsText(job.policy()), terminal);
}

bool IsNewest(const Explanation& explanation, const v1::Plan& plan) {
  return !explanation.plans.empty() && explanation.plans.front().plan() == plan.plan();
}

std::string PlacementText(const Explanation& explanation, const Terminal& terminal) {
  const v1::Plan* const plan = explanation.switched();
  if (plan == nullptr) {
    return Section("Current placement", terminal) +
           Indented("no plan that this daemon remembers led to it", terminal);
  }
  const char* const heading = IsNewest(explanation, *plan)
                                  ? "Current placement, by the newest decision"
                                  : "Current placement";
  return absl::StrCat(Section(heading, terminal), Indented(Printable(plan->reason()), terminal),
                      Indented(PlanFigures(*plan), terminal), ScenariosText(*plan, terminal));
}

// Empty if the newest decision led to the current placement, which is already described.
std::string NewestText(const Explanation& explanation, const Terminal& terminal) {
  std::string text = Section("Newest decision", terminal);
  if (explanation.plans.empty()) {
    const std::string& reason = explanation.job.last_reason();
    return text +
           Indented(reason.empty() ? "nothing was decided yet" : Printable(reason), terminal);
  }
  const v1::Plan& plan = explanation.plans.front();
  const v1::Plan* const switched = explanation.switched();
  if (switched != nullptr && IsNewest(explanation, *switched)) return "";
  return text +
         Indented(absl::StrCat("plan ", plan.plan(), " ", wire::EnumText(plan.result()), ": ",
                               Printable(plan.reason())),
                  terminal) +
         ScenariosText(plan, terminal);
}

// The transfers of a layer by the decision that led to the placement.
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
  return absl::StrCat("\n", Paragraph(text, terminal));
}

// Two evaluations to compare, and their names.
struct Sides {
  const char* left_name;
  const Evaluation* left;
  const char* right_name;
  const Evaluation* right;
};

// If a part of the window ran under another placement, the measured loads are on the left, and
// those computed for the current placement on the right.
Sides SidesOf(const Explanation& explanation) {
  if (explanation.measured && !explanation.ran_in_force()) {
    return {"measured", &*explanation.measured, "computed", &*explanation.computed};
  }
  const bool known = explanation.evaluated_before.has_value();
  return {known ? "before" : "static",
          known ? &*explanation.evaluated_before : &*explanation.unmoved, explanation.shown_name(),
          explanation.shown()};
}

std::span<const double> LayerRow(const Evaluation& evaluation, int32_t layer) {
  const auto row = evaluation.gpu_loads.row(layer);
  return {row.data(), static_cast<size_t>(row.size())};
}

std::string GpuList(const Placement& placement, LayerId layer, ExpertId expert) {
  std::vector<std::string> parts;
  for (const int32_t slot : placement.ReplicasOf(layer, expert)) {
    parts.push_back(absl::StrCat(placement.topology().GpuOf(SlotId{slot}).value, " (slot ", slot,
                                 parts.empty() ? ", primary)" : ")"));
  }
  return absl::StrJoin(parts, ", ");
}

// Absent in a layer without tokens.
std::optional<double> ShareOf(const Explanation& explanation, int32_t layer, int32_t expert) {
  const LoadMatrix& counts = explanation.load->window.load.counts();
  const double tokens = counts.row(layer).cast<double>().sum();
  if (!(tokens > 0)) return std::nullopt;
  return static_cast<double>(counts(layer, expert)) / tokens;
}

// The fraction of the layer's tokens that the expert takes, and that of each replica.
std::string SharesOfExpert(const Explanation& explanation, int32_t layer, int32_t expert,
                           int32_t replicas) {
  const auto& window = explanation.load->window;
  const std::optional<double> share = ShareOf(explanation, layer, expert);
  const std::string steps = absl::StrCat("on steps ", window.first_step, "..", window.last_step);
  if (!share) return absl::StrCat("takes no tokens, its layer has none ", steps);
  return absl::StrFormat("takes %s of the layer's tokens %s, %.2f times an even share; %s",
                         Percent(*share), steps,
                         *share * explanation.body->placement.topology().num_experts(),
                         SplitOf(explanation.job) == SplitMode::kBatch
                             ? "each batch splits them anew among its replicas"
                             : "a replica takes " + Percent(*share / replicas));
}

std::string NameOfTried(const v1::TriedCandidate& one) {
  return one.name() == kNoPolicyName ? "do nothing" : Printable(one.name());
}

// The results that the candidates of a policy that chooses would have had; empty for another
// policy.
std::string CandidatesText(const v1::JobStatus& job, const Terminal& terminal) {
  if (job.candidates().empty()) return "";
  std::vector<const v1::TriedCandidate*> order;
  for (const v1::TriedCandidate& one : job.candidates()) order.push_back(&one);
  std::ranges::stable_sort(order, [](const v1::TriedCandidate* a, const v1::TriedCandidate* b) {
    return a->net_seconds() > b->net_seconds();
  });
  std::vector<const google::protobuf::Message*> rows;
  size_t num_moving = 0;
  bool all_known = true;
  for (const v1::TriedCandidate* const one : order) {
    const bool idle = one->name() == kNoPolicyName;
    if (!idle && ++num_moving > kCandidatesShown && !one->in_use()) continue;
    all_known = all_known && (idle || (one->has_net_seconds() && one->has_realized()));
    rows.push_back(one);
  }
  std::string text = absl::StrCat(
      Section(absl::StrFormat("Candidates of policy auto, back-tested on %s",
                              Counted(order.front()->windows(), "window")),
              terminal),
      FormatTable(
          MessageTable(rows, terminal, {{"name", InWords<v1::TriedCandidate>(NameOfTried)}}),
          terminal));
  std::string note =
      "* in use; net: seconds saved over these windows less migrations and replicas; realized: of "
      "predicted gains, what later windows showed";
  if (!all_known) note += "; -: not known yet";
  if (num_moving > kCandidatesShown) {
    absl::StrAppend(&note, "; the best ", kCandidatesShown, " of ", num_moving,
                    " (-o json lists all)");
  }
  return text + Indented(note, terminal);
}

}  // namespace

std::string LayersText(const Explanation& explanation, LayerOrder order, size_t most,
                       const Terminal& terminal) {
  if (explanation.layers.empty()) return "";
  std::vector<v1::LayerFigures> layers = explanation.layers;  // worst first
  const char* name = "worst first";
  if (order == LayerOrder::kNumber) {
    name = "by number";
    std::ranges::sort(layers, {}, &v1::LayerFigures::layer);
  } else if (order == LayerOrder::kExpert) {
    name = "hottest expert first";
    std::ranges::stable_sort(layers, std::greater(), &v1::LayerFigures::hottest_expert_share);
  }
  const size_t shown = std::min(layers.size(), most);
  const std::string which =
      shown == layers.size() ? absl::StrCat("Layers, ", name)
                             : absl::StrCat("The worst ", shown, " of ", layers.size(), " layers");
  return Section(absl::StrFormat("%s, %s on steps %d..%d", which, explanation.shown_name(),
                                 explanation.load->window.first_step,
                                 explanation.load->window.last_step),
                 terminal) +
         FormatTable(MessageTable(std::span(layers).first(shown), terminal), terminal);
}

std::string DrawJobLoads(const Explanation& explanation, GpuPicture picture,
                         const Terminal& terminal) {
  for (const double tokens : picture.after) {
    picture.mean += tokens / static_cast<double>(picture.after.size());
  }
  if (!(picture.mean > 0)) return "";
  const Placement& placement = explanation.body->placement;
  for (int32_t gpu = 0; gpu < placement.topology().num_gpus(); ++gpu) {
    picture.unusable.push_back(!placement.Holds(GpuId{gpu}));
  }
  return DrawGpuLoads(picture, terminal);
}

std::string ExplainJob(const Explanation& explanation, const Terminal& terminal) {
  return absl::StrCat(Summary(explanation, terminal), CurrentSettings(explanation.job, terminal),
                      PlacementText(explanation, terminal), NewestText(explanation, terminal),
                      CandidatesText(explanation.job, terminal),
                      LayersText(explanation, LayerOrder::kWorst, kLayersShown, terminal));
}

std::string ExplainLayer(const Explanation& explanation, int32_t layer, const Terminal& terminal) {
  const Sides sides = SidesOf(explanation);
  const auto in_layer = [layer](const Evaluation& evaluation) {
    return FigureText(evaluation.balancedness[static_cast<size_t>(layer)]);
  };
  std::string sentence = absl::StrFormat(
      "balancedness on steps %d..%d: %s %s | %s %s", explanation.load->window.first_step,
      explanation.load->window.last_step, sides.right_name, in_layer(*sides.right), sides.left_name,
      in_layer(*sides.left));
  if (std::string_view(sides.left_name) != "static") {
    absl::StrAppend(&sentence, " | static ", in_layer(*explanation.unmoved));
  }
  const std::string name = absl::StrCat("L", LayerName(explanation.job, layer).substr(1));
  std::string text = Heading(name, terminal) + Indented(sentence, terminal);
  const std::string picture = DrawJobLoads(explanation,
                                           {.before_name = sides.left_name,
                                            .after_name = sides.right_name,
                                            .before = LayerRow(*sides.left, layer),
                                            .after = LayerRow(*sides.right, layer)},
                                           terminal);
  if (!picture.empty()) absl::StrAppend(&text, "\n", picture);
  return text + MovedText(explanation, layer, terminal);
}

std::string ExplainExpert(const Explanation& explanation, int32_t layer, int32_t expert,
                          const Terminal& terminal) {
  const Placement& placement = explanation.body->placement;
  const LayerId layer_id{layer};
  const ExpertId expert_id{expert};
  const int32_t replicas = placement.ReplicaCount(layer_id, expert_id);
  std::string text =
      Heading(absl::StrCat("Expert ", expert, " of ", LayerName(explanation.job, layer)), terminal);
  absl::StrAppend(&text, Indented(SharesOfExpert(explanation, layer, expert, replicas), terminal),
                  Indented(absl::StrCat("has ", Counted(replicas, "replica"), ": on GPU ",
                                        GpuList(placement, layer_id, expert_id)),
                           terminal));
  if (!explanation.before) return text;
  const std::string was = GpuList(explanation.before->placement, layer_id, expert_id);
  const std::string sentence =
      was == GpuList(placement, layer_id, expert_id)
          ? absl::StrCat("plan ", explanation.switched()->plan(), " left it where it was")
          : absl::StrCat("before plan ", explanation.switched()->plan(), ": on GPU ", was);
  return text + Indented(sentence, terminal);
}

}  // namespace eplb::cli
