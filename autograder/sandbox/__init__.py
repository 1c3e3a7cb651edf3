"""What runs in the process of a student's code, and the wire to it. It knows no answer."""
