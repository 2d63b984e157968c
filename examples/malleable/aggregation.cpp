// The classical phases of clustering aggregation, by MPI: one method on each rank, as in
// R. Rocco et al., QCE 2025. Without mpi.h, one process does the work of all ranks.
//
//   mpiexec aggregation cluster SEED    writes labels.txt and qubo.json
//   aggregation score < chosen          prints the silhouette of the chosen clusters
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <vector>
#if __has_include(<mpi.h>)
#include <mpi.h>
#endif

using Labels = std::vector<int>;
struct Point { double x, y; };
constexpr int POINTS = 2000, METHODS = 3;

double distance(Point a, Point b) { return std::hypot(a.x - b.x, a.y - b.y); }

std::vector<Point> blobs() {
  std::mt19937 random(0x1337);
  std::uniform_real_distribution<> centre(-20, 20);
  std::normal_distribution<> spread;
  std::vector<Point> centres(8), points;
  for (auto& c : centres) c = {centre(random), centre(random)};
  for (int i = 0; i < POINTS; ++i) {
    Point c = centres[i % centres.size()];
    points.push_back({c.x + spread(random), c.y + spread(random)});
  }
  return points;
}

Labels kmeans(const std::vector<Point>& points, std::mt19937& random) {
  std::vector<Point> centres(std::uniform_int_distribution<>(4, 10)(random));
  std::sample(points.begin(), points.end(), centres.begin(), centres.size(), random);
  Labels labels(points.size());
  for (int round = 0; round < 200; ++round) {
    std::vector<Point> sums(centres.size());
    std::vector<int> sizes(centres.size());
    for (size_t i = 0; i < points.size(); ++i) {
      auto nearer = [&](Point a, Point b) { return distance(points[i], a) < distance(points[i], b); };
      labels[i] = std::min_element(centres.begin(), centres.end(), nearer) - centres.begin();
      sums[labels[i]].x += points[i].x;
      sums[labels[i]].y += points[i].y;
      ++sizes[labels[i]];
    }
    for (size_t k = 0; k < centres.size(); ++k)
      if (sizes[k]) centres[k] = {sums[k].x / sizes[k], sums[k].y / sizes[k]};
  }
  return labels;
}

Labels dbscan(const std::vector<Point>& points, std::mt19937& random) {
  double radius = std::uniform_real_distribution<>(1.2, 4.5)(random);
  Labels labels(points.size(), -1);
  auto near = [&](int i) {
    std::vector<int> found;
    for (int j = 0; j < POINTS; ++j)
      if (distance(points[i], points[j]) < radius) found.push_back(j);
    return found;
  };
  int clusters = 0;
  for (int first = 0; first < POINTS; ++first) {
    if (labels[first] >= 0 || near(first).size() < 10) continue;
    std::vector<int> open{first};
    while (!open.empty()) {
      int i = open.back();
      open.pop_back();
      auto around = near(i);
      labels[i] = clusters;
      if (around.size() < 10) continue;
      for (int j : around)
        if (labels[j] < 0) { labels[j] = clusters; open.push_back(j); }
    }
    ++clusters;
  }
  for (int& label : labels)
    if (label < 0) label = clusters;  // noise
  return labels;
}

Labels single_linkage(const std::vector<Point>& points, std::mt19937& random) {
  int wanted = std::uniform_int_distribution<>(4, 10)(random);
  // Prim's minimum spanning tree; without its longest edges it is a forest of clusters
  std::vector<double> shortest(points.size(), std::numeric_limits<double>::infinity());
  Labels parent(points.size(), -1), order;
  std::vector<bool> done(points.size());
  for (size_t n = 0, i = 0; n < points.size(); ++n) {
    done[i] = true;
    order.push_back(i);
    size_t next = i;
    double least = std::numeric_limits<double>::infinity();
    for (size_t j = 0; j < points.size(); ++j) {
      if (done[j]) continue;
      double d = distance(points[i], points[j]);
      if (d < shortest[j]) { shortest[j] = d; parent[j] = i; }
      if (shortest[j] < least) { least = shortest[j]; next = j; }
    }
    i = next;
  }
  auto lengths = shortest;
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  double cut = lengths[wanted - 1];  // the first is that of the root
  Labels labels(points.size());
  int clusters = 0;
  for (int i : order)
    labels[i] = parent[i] < 0 || shortest[i] >= cut ? clusters++ : labels[parent[i]];
  return labels;
}

Labels cluster(int method, const std::vector<Point>& points, int seed) {
  std::mt19937 random(seed * METHODS + method);
  return method == 0   ? kmeans(points, random)
         : method == 1 ? dbscan(points, random)
                       : single_linkage(points, random);
}

// all clusters of all methods, as sets of points
std::vector<std::vector<bool>> candidates(const std::vector<Labels>& all) {
  std::vector<std::vector<bool>> found;
  for (const auto& labels : all)
    for (int k = 0; k <= *std::max_element(labels.begin(), labels.end()); ++k) {
      std::vector<bool> points(labels.size());
      for (size_t i = 0; i < labels.size(); ++i) points[i] = labels[i] == k;
      if (std::count(points.begin(), points.end(), true)) found.push_back(points);
    }
  return found;
}

// equation 1 of the paper, with the smallest penalties that are exact
void write_qubo(const std::vector<std::vector<bool>>& sets) {
  std::string linear, heads, tails, biases, names;
  auto add = [](std::string& list, auto value) {
    list += (list.empty() ? "" : ", ") + std::to_string(value);
  };
  auto weight = [&](size_t v) { return double(std::count(sets[v].begin(), sets[v].end(), true)) / POINTS; };
  int interactions = 0;
  for (size_t v = 0; v < sets.size(); ++v) {
    add(linear, -weight(v));
    add(names, v);
    for (size_t u = 0; u < v; ++u) {
      bool overlap = false;
      for (int i = 0; i < POINTS; ++i) overlap |= sets[u][i] && sets[v][i];
      if (!overlap) continue;
      add(heads, v), add(tails, u), add(biases, 1.05 * std::min(weight(u), weight(v)));
      ++interactions;
    }
  }
  std::ofstream("qubo.json")
      << "{\"bqm\": {\"type\": \"BinaryQuadraticModel\", \"version\": {\"bqm_schema\": \"3.0.0\"}, "
      << "\"use_bytes\": false, \"index_type\": \"int32\", \"bias_type\": \"float64\", \"info\": {}, "
      << "\"variable_type\": \"BINARY\", \"offset\": 0.0, \"num_variables\": " << sets.size()
      << ", \"num_interactions\": " << interactions << ", \"variable_labels\": [" << names
      << "], \"linear_biases\": [" << linear << "], \"quadratic_biases\": [" << biases
      << "], \"quadratic_head\": [" << heads << "], \"quadratic_tail\": [" << tails << "]}}\n";
}

double silhouette(const std::vector<Point>& points, const Labels& labels, int clusters) {
  double total = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    std::vector<double> sums(clusters);
    std::vector<int> sizes(clusters);
    for (size_t j = 0; j < points.size(); ++j)
      if (j != i) { sums[labels[j]] += distance(points[i], points[j]); ++sizes[labels[j]]; }
    double own = 0, other = std::numeric_limits<double>::infinity();
    for (int k = 0; k < clusters; ++k) {
      if (!sizes[k]) continue;
      if (k == labels[i]) own = sums[k] / sizes[k];
      else other = std::min(other, sums[k] / sizes[k]);
    }
    if (std::isfinite(other)) total += (other - own) / std::max(other, own);
  }
  return total / points.size();
}

int score(const std::vector<Point>& points) {
  std::vector<Labels> all(METHODS, Labels(POINTS));
  std::ifstream file("labels.txt");
  for (auto& labels : all)
    for (int& label : labels) file >> label;
  auto sets = candidates(all);
  Labels consensus(POINTS, -1);
  int clusters = 0;
  for (size_t v; std::cin >> v; ++clusters)
    for (int i = 0; i < POINTS; ++i)
      if (sets[v][i]) consensus[i] = clusters;
  // points of no chosen cluster go to that of their nearest neighbour
  Labels complete = consensus;
  for (int i = 0; i < POINTS; ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (int j = 0; consensus[i] < 0 && j < POINTS; ++j)
      if (consensus[j] >= 0 && distance(points[i], points[j]) < least) {
        least = distance(points[i], points[j]);
        complete[i] = consensus[j];
      }
  }
  if (!file || clusters == 0) return 1;
  std::cout << silhouette(points, complete, clusters) << std::endl;
  return 0;
}

int main(int count, char** words) {
  auto points = blobs();
  if (count == 2 && std::string(words[1]) == "score") return score(points);
  if (count != 3 || std::string(words[1]) != "cluster") return 2;
  int rank = 0, ranks = 1;
#ifdef MPI_VERSION
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
#endif
  std::vector<Labels> all(METHODS, Labels(POINTS));
  for (int method = rank; method < METHODS; method += ranks)
    all[method] = cluster(method, points, std::stoi(words[2]));
#ifdef MPI_VERSION
  for (int method = 0; method < METHODS; ++method)
    MPI_Bcast(all[method].data(), POINTS, MPI_INT, method % ranks, MPI_COMM_WORLD);
#endif
  if (rank == 0) {
    std::ofstream file("labels.txt");
    for (const auto& labels : all)
      for (int label : labels) file << label << '\n';
    write_qubo(candidates(all));
    std::cout << "clustered by " << ranks << " ranks" << std::endl;
  }
#ifdef MPI_VERSION
  MPI_Finalize();
#endif
}
