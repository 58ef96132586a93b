// The kernels' CPU build: the same source as the GPU's, on the SIMT executor.
#include "../kernels.cu"
