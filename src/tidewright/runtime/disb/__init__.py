"""disb: the DNN inference serving benchmark (SJTU IPADS) as data, arrivals and figures; and its run on the device model.

Workloads and their rules are DISB's (SJTU-IPADS/disb, Apache-2.0). Arrivals are pure, so that the model and a real device are
driven alike. It refuses to know how a device shares itself.
"""
