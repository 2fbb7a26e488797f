"""telexec for Python: `telexec.dask` has Dask clusters on machines that telexec reaches."""
