// How a problem is cut into pieces, which run one after the other, and where those of k are added up. Pure host code.
#pragma once
#include "views.h"

namespace sgemm {

// Whether pieces of k may be added up in D: only where it is nothing but their sum. Times alpha, or beside a larger C,
// each would be rounded as the result is.
inline bool adds_up_in_d(const Problem& p) { return p.alpha == 1 && p.beta == 0; }

// How large a piece is at most, and where those of k are added up: in D, if there are several and it is nothing but
// their sum; else in the workspace, for a part of one matrix at a time. Then m and n are the part's, and slices of some
// pieces are added up on their own first, so that as few roundings follow each other as can be.
struct Pieces {
  int64_t m, n, k, batch;
  int64_t slice = 0;  // of k, in whole pieces
  int slices = 1;
  bool in_d = true;

  int64_t of_k(const Problem& p) const { return std::max<int64_t>(1, ceil_div(p.k, k)); }  // how many
  size_t sum_bytes() const { return in_d ? 0 : 4 * static_cast<size_t>(slices * m * n); }  // of the workspace

  // One of `depth` of k, as it is planned.
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

// The piece by which a row is chosen: D is a new tensor, to which pieces are added if there are several. A problem's
// only piece may be one as it is.
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

// So much of k, in whole steps, that `count` pieces are as long as can be, but for the last.
inline int64_t even_piece(int64_t k, int64_t count, int64_t step) {
  return std::max<int64_t>(1, ceil_div(ceil_div(k, count), step)) * step;
}

// Pieces of `depth` of k, in slices of `slice`, whose sums take no more than `bytes`: of whole rows, if that can be.
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

// Calls `run` for pieces of at most `largest`'s m, n, k and batch, one after the other. Those of k are added up in D.
// None begins within a group of the batch and ends in another.
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
          if (q + piece.k < p.k) piece.activation = Activation::kNone;  // of the last piece
          run(piece);
        }
  }
}

}  // namespace sgemm
