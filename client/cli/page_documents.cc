#include "client/cli/page_documents.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "client/cli/text.h"
#include "placement/digest.h"
#include "placement/traffic.h"
#include "proto/wire/message_json.h"
#include "proto/wire/messages.h"
#include "proto/wire/placement_json.h"

namespace eplb::cli {
namespace {

constexpr std::string_view kJobs = "api/v1/jobs";

// Makes every text of a document printable, because reasons and names come from files.
void MakePrintable(PageJson& json) {
  if (json.is_string()) json = Printable(json.get_ref<const std::string&>());
  if (!json.is_structured()) return;
  for (PageJson& each : json) MakePrintable(each);
}

// Encodes `text` like a browser's encodeURIComponent.
std::string UriComponent(std::string_view text) {
  std::string encoded;
  for (const char one : text) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(one)) ||
                       std::string_view("-_.!~*'()").find(one) != std::string_view::npos;
    if (plain) {
      encoded += one;
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", static_cast<unsigned char>(one));
    }
  }
  return encoded;
}

template <class Matrix>
PageJson RowJson(const Matrix& matrix, Eigen::Index row) {
  const auto* const begin = matrix.row(row).data();
  return std::vector<typename Matrix::Scalar>(begin, begin + matrix.cols());
}

PageJson RowsJson(const RealMatrix& matrix) {
  PageJson rows = PageJson::array();
  for (Eigen::Index row = 0; row < matrix.rows(); ++row) rows.push_back(RowJson(matrix, row));
  return rows;
}

PageJson FlowsJson(std::span<const Flow> flows) {
  PageJson list = PageJson::array();
  for (const Flow& flow : flows) list.push_back({flow.from, flow.to, flow.transfers});
  return list;
}

bool Moved(const PageJson& plan) { return plan.value("num_chunks", 0) > 0; }

// Numbers that a window takes with its loads and its placement.
int64_t NumbersOf(const Topology& shape) {
  const int64_t experts = shape.num_experts();
  const int64_t slots = shape.num_slots();
  const int64_t gpus = shape.num_gpus();
  return shape.num_layers() * (2 * experts + 2 * slots + 3 * gpus);
}

// Fields without presence whose 0 is a value.
constexpr std::string_view kZeroIsKnown[] = {"base_version",
                                             "chunks_committed",
                                             "decided_first_step",
                                             "first_step",
                                             "has_loads",
                                             "last_step",
                                             "measured_first_step",
                                             "num_chunks",
                                             "rank",
                                             "running_version",
                                             "step",
                                             "tokens",
                                             "transfers",
                                             "version",
                                             "window",
                                             "windows"};

}  // namespace

PageJson KnownJson(const google::protobuf::Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const google::protobuf::Reflection& values = *message.GetReflection();
  PageJson json = wire::ToJson(message);
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const field = type.field(i);
    if (field->is_repeated() && field->message_type() != nullptr) {
      for (int at = 0; at < values.FieldSize(message, field); ++at) {
        json[field->name()][at] = KnownJson(values.GetRepeatedMessage(message, field, at));
      }
    }
    if (field->is_repeated() || field->has_presence()) continue;
    if (std::ranges::find(kZeroIsKnown, field->name()) != std::end(kZeroIsKnown)) continue;
    PageJson& value = json[field->name()];
    if (value == 0 || value == false) value = nullptr;
    if (field->name() == "unix_micros" && value.is_null()) json["time"] = nullptr;
  }
  return json;
}

PageDocuments::PageDocuments(std::string_view kind, std::string_view job, const Topology& topology,
                             int64_t num_windows)
    : kind_(kind),
      job_(Printable(job)),
      num_windows_(num_windows),
      first_window_(std::max<int64_t>(num_windows - kMaxPageWindows, 0)),
      num_with_loads_(
          std::clamp<int64_t>(kMaxPageNumbers / NumbersOf(topology), 2, kMaxPageWindowsWithLoads)) {
  status_.set_job(job_);
  v1::Shape& shape = *status_.mutable_shape();
  shape.set_num_layers(static_cast<uint32_t>(topology.num_layers()));
  shape.set_num_experts(static_cast<uint32_t>(topology.num_experts()));
  shape.set_num_slots(static_cast<uint32_t>(topology.num_slots()));
  shape.set_num_gpus(static_cast<uint32_t>(topology.num_gpus()));
  shape.set_num_nodes(static_cast<uint32_t>(topology.num_nodes()));
}

bool PageDocuments::KeepsWindow(int64_t index) const { return index >= first_window_; }

bool PageDocuments::KeepsLoads(int64_t index) const {
  if (!KeepsWindow(index)) return false;
  const int64_t kept = num_windows_ - first_window_;
  if (kept <= num_with_loads_) return true;
  // The first, the last and those between at equal distances.
  const int64_t place = index - first_window_;
  const int64_t nearest = (place * (num_with_loads_ - 1) + kept - 2) / (kept - 1);
  return nearest * (kept - 1) / (num_with_loads_ - 1) == place;
}

std::string PageDocuments::PathOf(std::string_view what) const {
  return absl::StrCat(std::string(kJobs), "/", UriComponent(job_), what.empty() ? "" : "/",
                      std::string(what));
}

void PageDocuments::AddWindow(const v1::Window& window) {
  const int64_t completed = window.completed_unix_micros();
  windows_.push_back(KnownJson(window));
  windows_.back()["completed"] = completed > 0 ? PageJson(wire::TimeText(completed)) : PageJson();
}

void PageDocuments::AddLoads(const v1::Window& window, const PageLoads& loads) {
  const PageJson versions = wire::ToJson(window)["versions"];
  const PageJson head = {{"job", job_},
                         {"window", window.window()},
                         {"first_step", window.first_step()},
                         {"last_step", window.last_step()},
                         {"versions", versions}};
  PageJson& on_gpus = paths_[PathOf(absl::StrCat("gpu_loads?window=", window.window()))];
  on_gpus = head;
  on_gpus["split"] = window.split();
  on_gpus["gpu_loads"] = RowsJson(loads.on_gpus);
  on_gpus["gpu_loads_static"] = RowsJson(loads.on_gpus_static);
  for (int32_t layer = 0; layer < loads.load.num_layers(); ++layer) {
    paths_[PathOf(absl::StrCat("load?layer=", layer, "&window=", window.window()))] = {
        {"job", job_},
        {"first_step", window.first_step()},
        {"last_step", window.last_step()},
        {"first_layer", layer},
        {"load", PageJson::array({RowJson(loads.load.counts(), layer)})},
        {"gpu_loads", PageJson::array({RowJson(loads.on_gpus, layer)})},
        {"versions", versions}};
  }
}

void PageDocuments::AddPlacement(int64_t version, const Placement& placement) {
  const auto path = [&](int32_t layer) {
    return PathOf(absl::StrCat("placement?layer=", layer, "&version=", version));
  };
  if (paths_.contains(path(0))) return;
  const std::string digest = DigestOf(placement).Hex();
  for (int32_t layer = 0; layer < placement.topology().num_layers(); ++layer) {
    PageJson& document = paths_[path(layer)];
    document = {{"job", job_}, {"version", version}, {"digest", digest}};
    document.update(wire::LayerToJson(placement, LayerId{layer}));
  }
}

absl::Status PageDocuments::AddTraffic(const v1::Plan& plan, const Placement& before,
                                       const Placement& after) {
  EPLB_ASSIGN_OR_RETURN(const Flows flows, FlowsBetween(before, after));
  paths_[PathOf(absl::StrCat("traffic?plan=", plan.plan()))] = {
      {"job", job_},
      {"plan", plan.plan()},
      {"base_version", plan.base_version()},
      {"last_version", plan.last_version()},
      {"num_gpus", before.topology().num_gpus()},
      {"num_nodes", before.topology().num_nodes()},
      {"transfers", flows.transfers},
      {"cross_node_transfers", flows.cross_node_transfers},
      {"received_bytes", plan.has_received_bytes() ? PageJson(plan.received_bytes()) : PageJson()},
      {"gpus", FlowsJson(flows.gpus)},
      {"nodes", FlowsJson(flows.nodes)}};
  return absl::OkStatus();
}

size_t PageDocuments::AddPlan(PageJson plan) {
  if (plan["decided_last_step"].is_null()) plan["decided_first_step"] = nullptr;
  plans_.push_back(std::move(plan));
  return plans_.size() - 1;
}

void PageDocuments::BoundPlans() {
  if (plans_.size() <= kMaxPagePlans) return;
  const size_t surplus = plans_.size() - kMaxPagePlans;
  size_t left = surplus;
  for (const bool moved : {false, true}) {
    const auto oldest = [&](const PageJson& plan) {
      if (left == 0 || Moved(plan) != moved) return false;
      --left;
      if (moved) paths_.erase(PathOf(absl::StrCat("traffic?plan=", plan["plan"].get<int64_t>())));
      return true;
    };
    plans_.erase(std::remove_if(plans_.begin(), plans_.end(), oldest), plans_.end());
  }
  AddWarning(absl::StrCat(
      Counted(surplus, "decision"),
      " of the oldest are left out, first of all those that moved nothing: a page has ",
      kMaxPagePlans));
}

void PageDocuments::BoundEvents() {
  if (events_.size() <= kMaxPageEvents) return;
  const size_t surplus = events_.size() - kMaxPageEvents;
  events_.erase(events_.begin(), events_.begin() + static_cast<ptrdiff_t>(surplus));
  AddWarning(absl::StrCat("the oldest ", Counted(surplus, "event"), " are left out: a page has ",
                          kMaxPageEvents));
}

PageJson PageDocuments::Finish(std::string_view made) {
  BoundPlans();
  BoundEvents();
  if (first_window_ > 0) {
    AddWarning(absl::StrCat("the oldest ", Counted(first_window_, "window"),
                            " are left out: a page has ", kMaxPageWindows));
  }
  paths_[PathOf("windows")] = {{"job", job_}, {"windows", std::move(windows_)}};
  // Newest first, in the daemon's order.
  paths_[PathOf("plans")] = {{"job", job_},
                             {"plans", PageJson(std::vector(plans_.rbegin(), plans_.rend()))}};
  paths_[PathOf("events")] = {{"job", job_},
                              {"events", PageJson(std::vector(events_.rbegin(), events_.rend()))}};
  PageJson status = KnownJson(status_);
  status.update(further_status_);
  paths_[std::string(kJobs)] = {{"jobs", PageJson::array({status})},
                                {"jobs_hidden", false},
                                {"refusals", PageJson::array()},
                                {"warnings", warnings_}};
  paths_[PathOf("")] = std::move(status);
  PageJson paths = PageJson::object();
  auto& members = paths.get_ref<PageJson::object_t&>();
  // There are thousands of them, and operator[] would look each one up.
  for (auto& [path, document] : paths_) {
    MakePrintable(document);
    members.emplace_back(path, std::move(document));
  }
  return {{"kind", kind_},
          {"made", std::string(made)},
          {"left_out", left_out_},
          {"paths", std::move(paths)}};
}

}  // namespace eplb::cli
