// Cuts a problem into pieces, which run one after the other, and decides where pieces of k are added up. Pure host
// code.
#pragma once
#include "views.h"

namespace sgemm {

// Returns true if pieces of k may be added up in D: D must be only the sum of their products. With alpha or a larger C,
// each partial sum would be rounded like a result.
inline bool adds_up_in_d(const Problem& p) { return p.alpha == 1 && p.beta == 0; }

// The largest size of a piece, and where pieces of k are added up. The sum is in D if D is only the sum of their
// products. Otherwise it is in the workspace, one part of a matrix after the other: m and n are the part's size.
// Several slices, of a few pieces each, are added up separately first, which shortens the longest chain of roundings.
struct Pieces {
  int64_t m, n, k, batch;
  int64_t slice = 0;  // k of a slice, a multiple of the piece's k
  int slices = 1;
  bool in_d = true;

  int64_t of_k(const Problem& p) const { return std::max<int64_t>(1, ceil_div(p.k, k)); }  // number of pieces
  size_t sum_bytes() const { return in_d ? 0 : 4 * static_cast<size_t>(slices * m * n); }  // workspace

  // Returns the problem of a piece with `depth` of k, for planning.
  Problem piece(const Problem& p, int64_t depth) const {
    Problem piece = p;
    piece.k = piece.a.cols = piece.b.rows = depth;
    piece.m = m;
    piece.n = n;
    piece.batch = batch;
    if (!in_d) piece.d = {nullptr, m, n, n, 1, 0};
    return piece;
  }
  Problem first(const Problem& p) const { return piece(p, std::min(p.k, k)); }
  Problem last(const Problem& p) const { return piece(p, p.k - (of_k(p) - 1) * k); }
};

// Returns the piece by which a row is chosen. Its D is a new tensor, which is also C if several pieces are added up.
// is_typical(): true if a problem's D already has the layout of a new tensor.
inline Problem typical(Problem piece, bool added) {
  piece.d = {nullptr, piece.m, piece.n, piece.n, 1, piece.m * piece.n};
  if (added) piece.beta = 1;
  if (added) piece.c = {nullptr, piece.m, piece.n, piece.n, 1, piece.m * piece.n};
  return piece;
}
inline bool is_typical(const Problem& p) {
  const bool together = p.batch == 1 || (p.d.batch.stride == p.m * p.n && p.d.batch.group == 0);
  return p.d.col == 1 && p.d.row == p.n && together && reinterpret_cast<uintptr_t>(p.d.data) % 16 == 0;
}

// Returns the k of each of `count` equally long pieces, in whole steps; the last piece may be shorter.
inline int64_t even_piece(int64_t k, int64_t count, int64_t step) {
  return std::max<int64_t>(1, ceil_div(ceil_div(k, count), step)) * step;
}

// Cuts k into pieces of `depth`, grouped into slices of `slice`. Their sums take at most `bytes`, of whole rows of D if
// a row fits.
inline Pieces pieces_of_k(const Problem& p, int64_t depth, int64_t slice, int64_t bytes) {
  Pieces cut = {p.m, p.n, depth, p.batch, slice, static_cast<int>(std::max<int64_t>(1, ceil_div(p.k, slice)))};
  cut.in_d = p.k <= depth || (cut.slices == 1 && adds_up_in_d(p));
  if (cut.in_d) return cut;
  const int64_t elements = std::max<int64_t>(1, bytes / 4 / cut.slices);
  cut.m = std::clamp<int64_t>(elements / std::max<int64_t>(1, p.n), 1, std::max<int64_t>(1, p.m));
  cut.n = std::clamp<int64_t>(elements / cut.m, 1, std::max<int64_t>(1, p.n));
  cut.batch = 1;
  return cut;
}

// Calls `run` for pieces of at most `largest`'s m, n, k and batch, one after the other. Pieces of k are added up in D.
// A piece that starts inside a group of the batch ends in the same group.
template <class Run>
void for_each_piece(const Problem& p, const Pieces& largest, const Run& run) {
  const int64_t depth = p.k > 0 ? p.k : 1;
  const int64_t group = std::max({p.a.batch.group, p.b.batch.group, p.c.batch.group, p.d.batch.group});
  int64_t count = 0;
  for (int64_t z = 0; z < p.batch; z += count) {
    count = std::min(largest.batch, p.batch - z);
    if (group && count < group) count = std::min(count, group - z % group);
    for (int64_t i = 0; i < p.m; i += largest.m)
      for (int64_t j = 0; j < p.n; j += largest.n)
        for (int64_t q = 0; q < depth; q += largest.k) {
          Problem piece = p;
          piece.m = std::min(largest.m, p.m - i);
          piece.n = std::min(largest.n, p.n - j);
          piece.k = std::min(largest.k, p.k - q);
          piece.batch = count;
          piece.a = block(p.a, p.elements_a, z, i, q, piece.m, piece.k);
          piece.b = block(p.b, p.elements_b, z, q, j, piece.k, piece.n);
          piece.c = block(p.c, z, i, j, piece.m, piece.n);
          piece.d = block(p.d, z, i, j, piece.m, piece.n);
          if (q > 0) {
            piece.beta = 1;
            piece.c = {piece.d.data, piece.m, piece.n, p.d.row, p.d.col, p.d.batch};
            if (adds_up_in_d(p)) piece.k_before = q;
          }
          if (q + piece.k < p.k) piece.activation = Activation::kNone;  // f is applied with the last piece
          run(piece);
        }
  }
}

}  // namespace sgemm
