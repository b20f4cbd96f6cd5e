#include "client/cli/formats/load_doubts.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"

#include "base/errors.h"

namespace eplb {
namespace {

// Smaller tables of counts may look like anything.
constexpr Eigen::Index kLeastEntries = 4;
// Distinct ids 0, 1, 2, .. that are no counts by chance.
constexpr double kLeastSureIds = 8;

constexpr char kPlain[] = "expected tokens of each expert [layers][experts]";

bool InOrder(const RealMatrix& row) {
  for (Eigen::Index i = 0; i < row.size(); ++i) {
    if (row.data()[i] != static_cast<double>(i)) return false;
  }
  return row.size() >= kLeastEntries;
}

// "0,1,2,..", as pandas names columns.
bool HasHeading(const RealMatrix& table) { return table.rows() > 1 && InOrder(table.row(0)); }

// A first column that counts the rows, as pandas names rows.
bool HasIndex(const RealMatrix& table) { return table.cols() > 1 && InOrder(table.col(0)); }

// The number of rows of a grid that has each combination of the values of the columns once.
double GridRows(const RealMatrix& columns) {
  double rows = 1;
  for (Eigen::Index column = 0; column < columns.cols(); ++column) {
    const auto ids = columns.col(column);
    rows *= static_cast<double>(std::set<double>(ids.begin(), ids.end()).size());
  }
  return rows;
}

// A row per (layer, expert) or per (window, layer, expert) with the count behind them: in any
// order if no row is missing, and rising if rows without tokens are left out.
bool IsLongForm(const RealMatrix& table) {
  const Eigen::Index ids = table.cols() - 1;
  if (ids < 2 || ids > 3 || table.rows() < kLeastEntries) return false;
  const RealMatrix columns = table.leftCols(ids);
  const auto experts = columns.col(ids - 1);
  const RealMatrix others = columns.leftCols(ids - 1);
  const bool others_vary = (others.colwise().maxCoeff() > others.colwise().minCoeff()).any();
  if ((columns != columns.round()).any() || experts.minCoeff() != 0) return false;
  if (experts.maxCoeff() == 0 || !others_vary) return false;
  std::set<std::vector<double>> places;
  bool rises = true;
  for (Eigen::Index row = 0; row < columns.rows(); ++row) {
    const auto one = columns.row(row);
    const std::vector<double> place(one.begin(), one.end());
    rises = rises && (places.empty() || *places.rbegin() < place);
    places.insert(place);
  }
  if (std::ssize(places) != columns.rows()) return false;  // an id has one count
  return rises || GridRows(columns) == static_cast<double>(columns.rows());
}

// The number of ids M when each row holds exactly the ids 0..M-1, as a map of slots does; else 0.
double IdsOfMap(const RealMatrix& table) {
  const double ids = table.maxCoeff() + 1;
  const auto slots = static_cast<double>(table.cols());
  if (ids < kLeastEntries || ids > slots || slots > 2 * ids) return 0;
  std::vector<bool> held(static_cast<size_t>(ids));
  for (Eigen::Index row = 0; row < table.rows(); ++row) {
    std::fill(held.begin(), held.end(), false);
    for (Eigen::Index slot = 0; slot < table.cols(); ++slot) {
      const auto id = static_cast<size_t>(table(row, slot));
      if (static_cast<double>(id) != table(row, slot)) return 0;
      held[id] = true;
    }
    if (std::ranges::find(held, false) != held.end()) return 0;
  }
  return ids;
}

bool HasBothZeroAndOneAlone(const RealMatrix& table) {
  return table.rows() > 1 && table.cols() > 1 && ((table == 0) || (table == 1)).all() &&
         (table == 0).any() && (table == 1).any();
}

// logical_replica_count: every expert at least once, and as many slots in every layer.
bool IsReplicaCount(const RealMatrix& table) {
  const double slots = table.row(0).sum();
  return table.cols() >= kLeastEntries && table.minCoeff() == 1 && table.maxCoeff() > 1 &&
         (table == table.round()).all() && slots <= 2 * static_cast<double>(table.cols()) &&
         (table.rowwise().sum() == slots).all();
}

absl::Status Refusal(std::string_view looks, std::string_view instead) {
  return InvalidInput(std::string(looks), ", ", std::string(instead),
                      R"(; if it is a load, write it as {"format":"eplb.load.v1","load":[..]})");
}

std::string Note(std::string_view looks) {
  return absl::StrCat(std::string(looks), ", and is read as a load");
}

constexpr char kHeading[] =
    "looks as if its first row were a heading, 0,1,2,.. as pandas writes it";
constexpr char kIndex[] =
    "looks as if its first column were an index, 0,1,2,.. as pandas writes it";
constexpr char kLongForm[] =
    "looks like a table in long form, a row per layer and expert with the count behind them";
constexpr char kMap[] = "looks like a placement, the expert in each slot of each layer";
constexpr char kZeroOne[] = "holds nothing but 0 and 1, as a matrix of experts and devices does";
constexpr char kReplicaCount[] = "looks like the number of replicas of each expert";

// True if the test holds for every window.
template <class Test>
bool All(const std::vector<LoadWindow>& windows, Test test) {
  return std::ranges::all_of(
      windows, [&test](const LoadWindow& window) { return test(window.load.ToDouble()); });
}

}  // namespace

absl::StatusOr<std::string> DoubtsAboutLoad(const std::vector<LoadWindow>& windows,
                                            TableKind kind) {
  const RealMatrix front = windows.front().load.ToDouble();
  if (windows.size() == 1 && IsLongForm(front)) return Refusal(kLongForm, kPlain);
  if (IdsOfMap(front) > 0 && All(windows, &IdsOfMap)) {
    if (IdsOfMap(front) >= kLeastSureIds) return Refusal(kMap, kPlain);
    return Note(kMap);
  }
  const char* const pandas = HasHeading(front) ? kHeading : HasIndex(front) ? kIndex : nullptr;
  if (windows.size() == 1 && pandas != nullptr) {
    if (kind != TableKind::kCsv) return Note(pandas);
    return Refusal(pandas, "expected counts alone: df.to_csv(.., header=False, index=False)");
  }
  if (HasBothZeroAndOneAlone(front) && All(windows, &HasBothZeroAndOneAlone)) return Note(kZeroOne);
  if (windows.size() == 1 && IsReplicaCount(front)) return Note(kReplicaCount);
  return std::string();
}

absl::StatusOr<std::string> DoubtsAboutMap(const IndexMatrix& slots) {
  const RealMatrix table = slots.cast<double>();
  if (HasIndex(table)) return absl::StrCat(kIndex, ", and is read as a map");
  if (!HasHeading(table)) return std::string();
  if (table.bottomRows(table.rows() - 1).maxCoeff() + 1 < static_cast<double>(table.cols())) {
    return InvalidInput(kHeading, ", expected the expert in each slot [layers][slots] alone");
  }
  // Without replicas, a first layer in order may be a layer that never moved.
  return std::string();
}

bool NamesPlacement(std::string_view array) {
  constexpr std::string_view kNames[] = {"physical_to_logical_map",
                                         "logical_to_physical_map",
                                         "logical_replica_count",
                                         "phy2log",
                                         "log2phy",
                                         "logcnt",
                                         "p2l_map",
                                         "expert_map",
                                         "initial_global_assignments"};
  return std::ranges::find(kNames, array) != std::end(kNames);
}

}  // namespace eplb
